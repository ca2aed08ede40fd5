#pragma once

namespace hvd {

/// How many cores this process may run on.
int cores();

} // namespace hvd
