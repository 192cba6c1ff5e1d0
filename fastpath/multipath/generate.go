package multipath

// Objects are the same for the same clang: continuous integration compares those of Debian 12 (scripts/bpf).
//go:generate go tool bpf2go -type settings -type path -type received -type network -type remote -type sent multipath multipath.c -- -O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
