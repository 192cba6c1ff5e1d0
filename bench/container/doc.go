// Package container runs programs in containers of Docker, Podman and Apptainer
// that have the network of a lab's node, as `docker run --network host` gives a
// container that of its host.
//
// # Theory of operation
//
// A Runtime is one of these engines, made ready inside a root lab; On says where
// a program is to run, and Start makes a container for it, with the engine's own
// defaults: seccomp profile, control group, image on overlayfs. Each program has
// a container of its own, which goes when the program ends.
//
//	lab (process 1) ── engine's own files ── dockerd ── containerd ── shim ── container
//	                                                    conmon ── container
//	                                                    apptainer's starter ── container
//
// The image is made from nothing (FROM scratch): this program at /cleat, the
// traffic generators asked for, and the libraries that they name. Docker and
// Podman import it as an archive; Apptainer takes the directory.
//
// The network: Podman and Apptainer are started on the node and hand its network
// on. A container of Docker's is made by its daemon, which lives in the lab's own
// namespace and calls an OCI runtime; what it calls is a script that enters the
// node's namespace and becomes runc. There is one daemon for any number of nodes.
//
// The daemon is always the lab's own, also where one runs on the host: the host's
// could not put a container on a node, and its processes would not be the lab's.
// So nothing of the user's Docker or Podman is touched or seen: no container, no
// image, no configuration. Engines write below /run, /etc, /opt and /var, whatever
// directories they are given. They run in a mount namespace in which these are
// private: /run is empty, the others are overlays whose writes go to the lab's
// scratch directory (see files).
//
// What ends: all processes are descendants of the lab's process 1, in nested PID
// namespaces at most. The kernel ends them with it, also by kill -9, and mounts
// and files, which are in the lab's tmpfs, go with the last. Only control groups
// outlive processes. All are made below one whose name is the lab's, which is
// locked as long as the lab lives; Close removes it, and the next Open or Sweep
// those that nobody locks any more.
//
// Processor time: the lab sees every process in its PID namespace, so the time of
// daemons, shims and containers counts as the experiment's own. A program's
// processors are a cpuset of its container; Apptainer has none and inherits them.
//
// # Limits
//
// A root lab: in a user lab engines have one user id, and no control groups.
// Containers get no descriptors beside the three standard ones. On machines with
// AppArmor Docker loads its profile into the kernel when it first starts, and
// leaves it there.
//
// Sources: dockerd(8), podman-create(1), apptainer-exec(1), the OCI runtime
// command line interface (github.com/opencontainers/runtime-tools,
// docs/command-line-interface.md), cgroups(7).
package container
