// Package find turns what a person types as CONTAINER into the running container
// that is meant, of any engine, and lists all there are.
//
//	web                 searched in every engine and among named namespaces
//	docker:web          in one: docker, podman, containerd, lxc, apptainer
//	containerd:k8s.io/web, podman:alice/web   in one namespace, of one user
//	containerd:alice/default/web              in a namespace of a user's
//	4242, pid:4242      the process
//	netns:blue          a name under /run/netns
//	/proc/4242/ns/net, path:…   a file
//
// # Theory of operation
//
// All engines are asked at once, each for no longer than a stated time, and none
// by its command line:
//
//	docker      its API, by HTTP over the local socket that DOCKER_HOST, the
//	            context or custom names; one request finds a container by name or id
//	podman      has no daemon. Each running container has a conmon, whose command
//	            line says id, name and where the files are, in whatever directory
//	            and of whichever user; names given later and containers that don't
//	            run are in containers.json. With CONTAINER_HOST: by the API.
//	containerd  the directory of each task below /run/containerd, and nerdctl's names;
//	            where nothing fits of any engine, its API is asked for containers
//	            without a task
//	lxc         each container has a monitor: an lxc-start, or what Incus or LXD
//	            made of themselves; failing that, the control groups, v1 or v2
//	apptainer   each instance has a starter whose title says user and name
//
// The first process of a monitor's container is the child that is process 1 of a
// PID namespace, or else in the container's control group or pid file. Monitors in
// other PID namespaces are those of containers in containers, and left out.
//
// A full name or id goes before the beginning of an id, what runs before what
// does not, and one's own before root's. What is left is one container, or the
// error Ambiguous. Of a plain word only four characters or more count as the
// beginning of an id: "db" is a name somebody forgot to start. A number is always a
// process.
//
// Root can name other users' containers, too, but only with the user's name in front:
// whoever has an engine chooses the names and ids in it. A plain word never means
// another user's container, not even while root's own of that name does not run.
//
// # What is believed
//
// Engines name processes by number, in files that may be old and from sockets that
// may lead to another machine or PID namespace. So a process is taken for a
// container's only if its control group or its parent's command line has the
// container's id, or its parent is the monitor. Found keeps the
// time at which it started, by which NS notices that the number has come to mean
// another process: it looks before and after it opens the namespace.
//
// Root may be led astray by what ordinary users have put in its way, so:
//
//   - A file or directory counts only if it belongs to the user whose place it is in.
//     It is opened after it was looked at (O_PATH), so neither links to files of
//     others nor FIFOs nor devices are touched. Sizes and counts are bounded.
//   - An engine is that of whoever listens at its socket (SO_PEERCRED).
//   - The first process of a user's container must be in a network namespace that
//     belongs to a user namespace which the user made (ioctl_ns(2)), or in the host's.
//   - A monitor with root's uid is believed only if it has CAP_SYS_ADMIN in the caller's
//     user namespace: one in a container that shares the host's process ids has not.
//   - Found.NS opens the namespace that was looked at, or fails.
//   - Other users' engines are asked only when everything is listed or the user is named,
//     and a bounded number at a time: a user can have whoever looks wait for ever.
//
// # Listening
//
// Listen tells when it is worth looking. Docker's API has a stream of events. Podman has
// no daemon to ask, and a service that ends when nobody asks it; but its monitors write
// each container's process id to a file below the user's runtime directory, containerd
// makes a directory of each task, and ip-netns(8) a file of each name: those
// directories are watched by inotify(7), and the ones above them as long as they are
// missing. So it takes no process of its own, and no rights but to read them. Root does
// not listen to other users' engines: they could wake it as often as they like.
//
// # Limits
//
// Remote engines are refused by name. Docker Desktop's containers are in a virtual
// machine: the process is not found, and that is said. Podman's containers that
// don't run are known of in its usual directories only, and CRI-O's count as
// Podman's. Containers of containerd without a task are known of where nerdctl
// made them. Where LXC had to number a control group ("web-1") because an old one
// was in the way, a container in the foreground is called that. A user without
// root sees who runs, but can open only what is his own.
//
// Sources: Docker Engine API v1.41 (ContainerList, ContainerInspect,
// SystemEvents); docker
// context (cli/context/store); conmon(8); containers-storage(5); containerd
// docs/PLUGINS.md and runtime/v2; nerdctl docs/dir.md; cri-containerd annotations
// (pkg/annotations); lxc.container.conf(5), lxc_monitor title and cgroup names as
// LXC 5.0 makes them; Apptainer 1.4's instance titles; proc(5), cgroups(7),
// ioctl_ns(2).
package find
