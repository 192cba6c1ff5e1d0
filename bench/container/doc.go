// Package container runs programs in containers of Docker, Podman and Apptainer that have
// the network of a node of the lab, as `docker run --network host` gives a container that
// of its host.
//
// # Theory of operation
//
// A Runtime is one of these engines, made ready inside a root lab. On returns a
// lab.Runner for a node; its Start makes a container with the engine's own defaults:
// seccomp profile, control group, image on overlayfs. Each program has a container of its
// own, which is removed when the program ends.
//
//	lab (process 1) ── engine's own files ── dockerd ── containerd ── shim ── container
//	                                                    conmon ── container
//	                                                    apptainer's starter ── container
//
// The image is made from nothing (FROM scratch): this program at /cleat, the traffic
// generators in Config.Programs, and their shared libraries. Docker and Podman import it
// as an archive; Apptainer takes the directory.
//
// The network: Podman and Apptainer are started on the node and pass its network on. A
// container of Docker is made by Docker's daemon, which lives in the lab's own namespace
// and calls an OCI runtime. That is a script that enters the node's namespace and becomes
// runc. One daemon serves any number of nodes.
//
// The daemon is always the lab's own, even if one runs on the host: the host's daemon
// could not put a container on a node, and its processes would not be the lab's. So no
// container, image or configuration of the user's Docker or Podman is touched or visible.
// Engines write below /run, /etc, /opt and /var, whatever directories they are given.
// They run in a mount namespace where these are private: /run is empty, and the others
// are overlays whose writes go to the lab's scratch directory (see privateMounts).
//
// Clean-up: all processes are descendants of the lab's process 1, at most in nested PID
// namespaces. The kernel kills them with it, even by kill -9. Mounts and files are in the
// lab's tmpfs and vanish with the last process. Only control groups outlive processes.
// All are made below one group of the lab, which is locked as long as the lab lives.
// Close removes it; the next Open or Sweep removes groups that nobody locks.
//
// Processor time: the lab sees every process in its PID namespace, so the time of
// daemons, shims and containers counts as the experiment's own. A program's processors
// are a cpuset of its container; Apptainer has none and inherits them.
//
// # Limits
//
// It needs a root lab: in a user lab engines have one user id and no control groups.
// Containers get no descriptors besides the three standard ones. On machines with
// AppArmor, Docker loads its profile into the kernel when it first starts, and leaves it
// there.
//
// Sources: dockerd(8), podman-create(1), apptainer-exec(1), the OCI runtime command line
// interface (github.com/opencontainers/runtime-tools, docs/command-line-interface.md),
// cgroups(7).
package container
