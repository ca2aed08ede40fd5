#pragma once

// Included first by what only binds: that is called once or waits for Python
// anyway, and pybind11's templates would be a third of the module.
#pragma GCC optimize("Os")
