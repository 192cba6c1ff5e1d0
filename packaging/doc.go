// Package packaging has the files of the Debian package that `make deb` builds, and tests that
// package; `make test-deb` builds and tests it. It has no other code.
//
//	build                    builds the package from what `make install` installs
//	nfpm.yaml                its description, for nfpm; tools.mod pins nfpm
//	postinst, prerm, postrm  what dpkg runs (deb-postinst(5))
//	lintian-overrides        what is as it should be although lintian reports it
//	copyright, licenses      the project's license; prints those of Go and all modules
//
// A file that `make install` installs is part of the package. A new systemd unit is also a word in
// the variable units of the three scripts.
//
// # Removal
//
// The package enables the keeper's unit and the socket for Docker, but no process stays: a keeper ends
// when there is nothing to keep. A removal takes all networks and links down (cleat keep --down), because nobody
// could do that without the program, and keeps the files of what is wanted: a package that is
// installed later brings it back. A purge deletes these files as well.
package packaging
