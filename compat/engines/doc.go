// Package engines runs real container engines with cleat in the place of their
// helpers: rootless Podman with pasta, RootlessKit with slirp4netns and pasta,
// as an ordinary user, with published ports, names, pings and a machine next
// door that sees who calls; and `cleat run --netns` beside containers that Podman
// and Apptainer have made without a network; `cleat bench --runtime apptainer`; and
// finds an ordinary user's containers by their names, and attaches them.
// It has no code, only tests.
//
// The engines come from a newer Debian in a tree outside of the repository:
//
//	sudo nice compat/engines/testdata/tree.sh /var/tmp/cleat-sid
//	sudo env "PATH=$PATH" CLEAT_SID=/var/tmp/cleat-sid go test -v ./compat/engines
//
// takes half a minute and 1 GB, then about 45 s; "tree.sh DIR experimental" makes
// a tree with the newest engines. Each story runs in namespaces of its own on a
// copy of the tree in memory; neither the tree nor the host changes. Without root
// or CLEAT_SID the tests skip.
//
// RootlessKit's pasta driver is of use since 2.3, and CLEAT_ROOTLESSKIT names a
// program of a newer release than the tree's.
//
// To compare with Debian's own helpers run a story by hand:
//
//	cd compat/engines/testdata
//	sudo ./enter.sh /var/tmp/cleat-sid DIR_WITH_WHOAMI ./podman.sh pasta --network pasta
package engines
