"""What tests and benchmarks need around a program: several hosts on one machine."""
