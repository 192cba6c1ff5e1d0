// Package engines tests Cleat with real container engines. It contains only tests:
//
//   - rootless Podman with pasta, and RootlessKit with slirp4netns and pasta, with cleat in place of the helpers, as an ordinary user: published ports, names, pings, and a neighbouring machine that sees the client's address;
//   - `cleat run --netns` for containers that Podman and Apptainer have made without a network;
//   - `cleat bench --runtime apptainer`;
//   - Podman's containers on networks of `cleat net`, with cleat in the place of netavark and as its plug-in, with root and without;
//   - finding an ordinary user's containers by name, and attaching them.
//
// The engines come from a newer Debian in a tree outside the repository:
//
//	sudo nice compat/engines/testdata/tree.sh /var/tmp/cleat-sid
//	sudo env "PATH=$PATH" CLEAT_SID=/var/tmp/cleat-sid go test -v ./compat/engines
//
// This takes half a minute and 1 GB, then about a minute. "tree.sh DIR experimental" makes a
// tree with the newest engines. `make test-engines` runs TestNetworks with Podman of trixie. Each story runs in its own namespaces on a copy of the
// tree in memory; neither the tree nor the host changes. Without root or CLEAT_SID, the
// tests are skipped.
//
// RootlessKit's pasta driver works since 2.3. CLEAT_ROOTLESSKIT names a program of a
// newer release than the tree's.
//
// To compare with Debian's own helpers, run a story by hand:
//
//	cd compat/engines/testdata
//	sudo ./enter.sh /var/tmp/cleat-sid DIR_WITH_WHOAMI ./podman.sh pasta --network pasta
package engines
