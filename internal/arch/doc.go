// Package arch tests that imports follow this picture of the packages. It has no other
// code. Packages (rooms) are on five floors:
//
//	DOOR    cmd/cleat        passes argv to cli or compat                        → cli, compat; lab, mptcp, mptcp/upgrade, sandbox
//	        cmd/cleat-cni    what engines start, by CNI or as netavark: asks a keeper → compat/netavark/args, network/keep/client
//	        cmd/cleat-node   passes argv to cli/node, and is the dataplane of overlay → cli/networks, cli/node, fastpath, overlay, overlay/control, registry; network/attach, bgp, firewall, keep, named, names, span, span/guard, span/probe, why; tunnel/control, secure, spec; link, netns
//	        doc/examples     minimal, firewall, socks5: example programs         → sandbox
//	          minimal        a program in a network of its own
//	          firewall       what it may reach
//	          socks5         its connections through a proxy
//	FACES   cli              our command line: the root command, groups, requests to a keeper  → its rooms; compat, link, network/attach, keep/client
//	          attach         attach, detach, ls, inspect                         → complete, container, help, hint, term; link, netns/find, network/attach, dhcp, keep
//	          keep           keep                                                → attach, container, exit, help, hint, networks, term; compat, netns/find, network/attach, keep, keep/client, named
//	          networks       net and its subcommands                             → attach, container, exit, help, hint, term; link, netns/find, network/attach, ipam, keep, named, names, why, overlay/control
//	          node           cleat-node and its subcommands                      → complete, exit, help, hint, man, term; network/attach, bgp, overlay, overlay/control, registry, trust, ui
//	          graph          graph                                               → container, hint, term; netns/find, network/graph, named, survey
//	          bench          bench and its subcommands, recommend                → complete, container, exit, help, hint, term; bench and its rooms, lab, netns, traffic
//	          doctor         doctor                                              → container, term; bench/host, network/trace
//	          traffic        traffic and its subcommands                         → hint, term; traffic
//	          run            run, seccomp-profile                                → complete, exit, help, hint, term; policy, sandbox, sandbox/control
//	          ctl            ctl and its subcommands                             → run, complete, hint, term; policy, sandbox/control
//	          tunnel         tunnel and its subcommands                          → complete, exit, hint, term; tunnel and its rooms, link, internal/seal
//	          mptcp          mptcp and its subcommands                           → run, complete, container, exit, help, hint, term; mptcp, mptcp/upgrade, link, netns
//	          man            man: manual pages                                   → help, term
//	          help           help, and the help of every command                 → hint
//	          complete       completion, and words for the shell to complete     → hint
//	          container      CONTAINER arguments: find, name, complete           → hint; netns, netns/find, network/attach, survey
//	          exit           exit codes, signals, the last error                 → hint; bench/experiment, lab, netns/find
//	          hint           errors with hints, mistakes in the command line
//	          term           tables, JSON, units, colours
//	          termtest       text of others that a terminal must not act on, for tests
//	        compat           other programs' command lines, one folder each      → its programs; cli/container, exit, hint, networks, network/keep, keep/client, named
//	          cni            a CNI plug-in for networks by name                 → network/attach, named, resolvconf; link, netns, netns/find
//	          docker         network and IPAM driver of Docker                 → network/attach, ipam, named, resolvconf; link
//	          netavark       a drop-in for netavark, and a plug-in for it       → args; network/attach, ipam, named; link, netns, netns/find
//	            args         parses its command line; small, for cmd/cleat-cni
//	          pasta          a drop-in for pasta(1)                             → getopt, journal, portspec; sandbox, dns
//	          slirp4netns    a drop-in for slirp4netns(1)                        → getopt, journal; sandbox
//	          pipework       a drop-in for pipework                              → journal; network/attach, dhcp; link, netns
//	          getopt         parses a command line like getopt_long(3)
//	          journal        log messages, to standard error or the system log
//	          portspec       pasta's notation for forwarded ports
//	BRAINS  bench            runs an experiment, keeps every sample              → lab, link, netns, traffic, and its rooms:
//	          experiment     what to measure: files and presets                  → catalog, cell, multipath
//	          schedule       the order of jobs: randomised blocks
//	          wiring         builds each network in a lab                        → catalog, cell, container, multipath, named; lab, link, netns
//	          container      runs clients and servers in Docker, Podman, …       → cell; lab, link
//	          attacher       attaches containers, with Cleat and other programs  → catalog, container, named, spanned; lab, link, netns
//	          named          named networks of engines, Cleat's and others       → container; lab, link, netns
//	          spanned        networks that span hosts, of cleat-node and others  → container, named; lab, link, netns
//	          remote         other machines over ssh, on which an agent runs     → cell, wiring; lab, link
//	            agent        that agent: programs and sides of networks there    → remote, cell, host, wiring; lab, netns
//	          benchtest      the program and scratch directories, for tests
//	          host           the machine: fingerprint, checks, processor time    → cell
//	          summary        medians and warnings of each cell                   → stats, catalog, cell
//	          stats          medians, intervals, differences, histograms         → cell
//	          report         tables, figures, the HTML page                      → summary, stats, catalog, cell, multipath
//	          catalog        every network by name: data
//	          multipath      models of several links and their capacity
//	          cell           the types of results, and how tables show them
//	        sandbox          a process in a network of its own                   → usernet, lan, policy, dns, supervisor; internal/seal
//	          control        queries and controls a running sandbox              → usernet
//	          supervisor     gives a process sockets of the host; the test counts it as hands
//	        network          containers and the links they have; no code of its own, but rooms:
//	          attach         adds a link to a running container, removes it     → journal, announce, dhcp, segment, qdisc, resolvconf, rules; link, netns
//	          keep           restores attachments after restarts, renews leases → attach, client; netns, netns/find
//	            client       sends command lines to a keeper; the test counts it as hands
//	          named          networks by name: addresses, names, ports, rules    → attach, firewall, ipam, journal, names, resolvconf; fastpath, policy, link, netns, netns/find
//	          ipam           gives addresses of a network to its endpoints
//	          journal        records how to undo each step; the test counts it as hands
//	          survey         finds namespaces, links and their peers            → netns
//	          graph          draws a survey, as text and as SVG                 → survey
//	          trace          follows packets from one namespace to another      → survey, netns
//	          why            finds out why a container can't reach another      → attach, named, names, segment, survey, trace; link, netns, netns/files, netns/find
//	        overlay          networks that span hosts: mirrors a registry for a dataplane → control, gate, member, registry, trust
//	          control        queries and controls this host's node; the test counts it and the next ones as hands
//	          gate           the port at which hosts reach each other             → trust
//	          member         runs a member of the registry: an embedded etcd      → gate, registry
//	          registry       hosts, networks, blocks, endpoints in etcd
//	          trust          keys, certificates and tokens of hosts
//	          ui             the cluster as a page in a browser, and as metrics    → control
//	        mptcp            several links for one TCP connection               → link, netns
//	          upgrade        gives programs MPTCP sockets; the test counts it as hands → netns
//	HANDS   policy           rules: what a process may reach                     → usernet
//	        dns              DNS messages, forwarding to the host's resolvers
//	        fastpath         BPF programs that forward the packets of known flows       → link
//	          multipath      BPF programs that send a tunnel's packets by several paths   → fastpath
//	        lab              hosts, cables and switches made of namespaces       → link, netns
//	          labtest        hosts outside a lab, for tests                       → lab, netns
//	          vm             the same tests under other kernels, in QEMU
//	        link             kernel links, one file per kind                     → netns
//	        netns            creates, enters and finds network namespaces
//	          find           finds a running container by name                   → netns
//	          files          files of a container, with its root's rights        → netns
//	        traffic          load generator, server, relay between TUNs
//	        tunnel           multipath GRE-in-UDP between a TUN and sockets      → order, sched, secure, wire
//	          order          reorders packets, flow by flow
//	          sched          which path sends what, and how fast; dead paths
//	          wire           shim and control messages                           → sched
//	          secure         handshake, packet protection, replay window; no I/O
//	          spec           reads and checks tunnel files                       → secure
//	          endpoint       one end on this machine: device, sockets, monitoring → tunnel, sched, spec, wire; fastpath/multipath, link, netns, internal/seal
//	          control        queries and controls a running tunnel               → tunnel, spec
//	          tunneltest     fake device and paths, for tests                    → tunnel
//	        usernet          rootless data path: TUN or TAP on one side, sockets on the other → lan
//	          lan              answers ARP, NDP and DHCP on a TAP
//	          usernettest    conformance suite for it and for its rivals         → lab, link, netns
//	          guesttest      a scripted guest, for tests
//	        network          its lower half, for one segment, host or container:
//	          segment        sends and receives packets on a link               → link, netns
//	          segmenttest    a switch with hosts, for tests                     → segment; lab, link, netns
//	          announce       announces addresses, checks for duplicates         → segment; link
//	          dhcp           a DHCP client: gets, renews and releases leases    → segment, announce; link
//	          dhcptest       a DHCP server for tests
//	          qdisc          saves and restores queueing disciplines            → netns
//	          resolvconf     edits a container's resolv.conf                    → netns, netns/files
//	          rules          nftables rules in a table of Cleat's own           → netns
//	          firewall       networks and published ports, in two nftables tables → link, netns
//	          names          serves the names of networks by DNS                → dns, internal/seal
//	          span           devices and routes to other hosts' containers       → link, netns
//	            guard        keeps all but hosts from what only hosts may send   → link, netns
//	            probe        whether a segment passes packets of containers      → link, netns
//	          bgp            routes from and to routers, by BGP                  → link, netns
//	          networktest    snapshots of namespaces and state, for tests       → link, netns
//	        internal/seal    drops capabilities, file access and system calls
//	FACTS   packet           header formats and checksums, no I/O
//	        internal/sys     all raw system calls, the only unsafe
//	          systest        system calls that only tests make
//	        internal/spell   suggests a known word for an unknown one
//	        internal/yamlfile  reads YAML files strictly
//	        internal/rate    parses and formats rates in bit/s
//	        internal/atomicfile  replaces files as a whole
//	        internal/buildinfo  which version of Cleat a program is
//	        internal/columns  lays out text in a terminal's columns
//	        internal/look    colours and fonts of figures
//	        internal/program finds tc, ovs-vsctl and the like
//	        internal/procstat fields of /proc/PID/stat; the machine's processor time
//	        internal/linkzoo random links from seeds, for tests of multipath
//	        internal/ledger  limits the memory a guest can make its helper use
//	        internal/dnsname  compares domain names as servers do
//	        internal/statedir  the state directory: paths, JSON files, locks, ownership
//	        internal/localsock  Unix sockets that control running programs
//	        internal/nlsock  netlink requests in hostile namespaces
//
// Imports go down, or sideways along an arrow drawn here; every package may import facts.
// Brains never import faces. Tests may import what is on their own floor or below, and
// external tests may import lab from any floor. bench never imports usernet, tunnel,
// sandbox or compat: it runs Cleat by command line, as it runs its rivals. A new arrow
// changes this picture and the data in the test, in the same commit.
package arch
