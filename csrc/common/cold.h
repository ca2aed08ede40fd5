#pragma once

// Included first by what only binds, is called once, or runs when something is
// wrong: its size counts, not its speed. The templates of pybind11 alone would
// be a third of the module.
#pragma GCC optimize("Os")
