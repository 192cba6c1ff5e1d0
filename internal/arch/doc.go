// Package arch holds the picture of the rooms against the imports, so that the
// picture stays true. It has no code, only a test.
//
//	DOOR    cmd/cleat        argv[0] decides which face is shown                 → cli, compat; lab, mptcp, mptcp/upgrade, sandbox
//	        doc/examples     minimal, firewall, socks5: programs to be copied    → sandbox
//	          minimal        a program in a network of its own
//	          firewall       what it may reach
//	          socks5         its connections through a proxy
//	FACES   cli              our command line: the root command, groups, requests to a keeper  → its rooms; compat, link, network/attach, keep
//	          attach         attach, detach, ls, inspect                         → complete, container, help, hint, term; link, netns/find, network/attach, dhcp, keep
//	          keep           keep                                                → attach, container, exit, help, hint, term; netns/find, network/attach, keep
//	          graph          graph                                               → container, hint, term; netns/find, network/graph, survey
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
//	        compat           other programs' command lines, one folder each      → its programs; cli/container, network/keep
//	          pasta          in the place of pasta(1)                            → getopt, journal, portspec; sandbox, dns
//	          slirp4netns    in the place of slirp4netns(1)                      → getopt, journal; sandbox
//	          pipework       in the place of pipework                            → journal; network/attach, dhcp; link, netns
//	          getopt         reads a command line as getopt_long(3) does
//	          journal        what a helper says, where somebody may read it
//	          portspec       pasta's way to say which ports lead where
//	BRAINS  bench            runs an experiment, keeps every sample              → lab, link, netns, traffic, and its rooms:
//	          experiment     what to measure: files and presets                  → catalog, cell, multipath
//	          schedule       in which order: randomised blocks
//	          wiring         builds each network in a lab                        → catalog, cell, container, multipath; lab, link, netns
//	          container      runs ends in Docker, Podman, Apptainer              → cell; lab, link
//	          attacher       gives containers links by our and others' programs  → container; lab, link, netns
//	          host           the machine: fingerprint, processor time            → cell
//	          summary        what the samples say                                → stats, catalog, cell
//	          stats          medians, intervals, differences, histograms         → cell
//	          report         tables, figures, the HTML page                      → summary, stats, catalog, cell, multipath
//	          catalog        every network by name: data
//	          multipath      several links: what they are like and could carry
//	          cell           the nouns of results: cell, sample, summary
//	        sandbox          a process in a network of its own                   → usernet, policy, dns, supervisor; internal/seal
//	          control        asking and telling the helper of a running sandbox
//	          supervisor     hands it sockets of the host's; it is hands to the test
//	        network          containers, and what they are wired to; it has no code of its own, but rooms:
//	          attach         gives a running container a link, takes it away again       → journal, announce, dhcp, segment, qdisc, resolvconf, rules; link, netns
//	          keep           has attachments stay: leases, restarts             → attach; netns, netns/find
//	          journal        what undoes an operation, on file before each step; it is hands to the test
//	          survey         finds it out: namespaces, links, whose peer           → netns
//	          graph          draws that, in text and as SVG                        → survey
//	          trace          follows packets from one namespace to another             → survey, netns
//	        mptcp            several links for one TCP connection: the kernel's own      → link, netns
//	          upgrade        gives programs MPTCP sockets; it is hands to the test       → netns
//	HANDS   policy           rules: what may reach what, by address and by name  → usernet
//	        dns              DNS messages, forwarding to the host's resolvers
//	        lab              hosts, cables and switches made of namespaces       → link, netns
//	          labtest        the world outside of a lab, for tests                → lab, netns
//	          vm             the same tests under other kernels, in QEMU
//	        link             kernel links, one file a kind                       → netns
//	        netns            create, enter and find network namespaces
//	          find           the running container that a person means           → netns
//	          files          files of a container, as its own root reaches them  → netns
//	        traffic          load generator and sink, relay between TUNs
//	        tunnel           multipath GRE-in-UDP between a TUN and sockets      → order, sched, secure, wire
//	          order          puts packets back into order, flow by flow
//	          sched          which path carries what, how fast; which is dead
//	          wire           shim and control messages                           → sched
//	          secure         handshake, packet protection, replay window; no I/O
//	          spec           reads and checks tunnel files                       → secure
//	          endpoint       one end on this machine: device, sockets, watching  → tunnel, sched, spec; link, netns, internal/seal
//	          control        queries and controls a running tunnel               → tunnel, spec
//	          tunneltest     fake device and paths, for tests                    → tunnel
//	        usernet          rootless data path: TUN on one side, sockets on the other
//	          usernettest    one conformance suite for it and for its rivals     → lab, link, netns
//	          guesttest      a guest that follows a script, for tests
//	        network          its hands, which talk to a segment or change one part of a host or container:
//	          segment        packets to and from the segment that a link is on  → link, netns
//	          segmenttest    a switch with machines on it, for tests            → segment; lab, link, netns
//	          announce       announces addresses, checks that none is a duplicate → segment; link
//	          dhcp           a DHCP client: gets, renews and releases leases    → segment, announce; link
//	          dhcptest       a DHCP server for tests
//	          qdisc          saves and restores the queueing disciplines of a device  → netns
//	          resolvconf     replaces name servers in a container's resolv.conf  → netns, netns/files
//	          rules          nftables rules known by a comment, in a table of our own  → netns
//	        internal/seal    takes rights and system calls from a process that has its descriptors
//	FACTS   packet           header formats and checksums, no I/O
//	        internal/sys     the only unsafe and raw system calls
//	          systest        system calls that tests try, and programs don't make
//	        internal/spell   the known word that an unknown one was meant to be
//	        internal/yamlfile  files that people write, read strictly
//	        internal/rate    rates in bit/s as people write them
//	        internal/atomicfile  files that are replaced as a whole
//	        internal/columns  text in a terminal's columns
//	        internal/look    colours and fonts of our pictures
//	        internal/program where tc, ovs-vsctl and others' programs are
//	        internal/ledger  bounds what a guest can make its helper spend
//	        internal/dnsname  compares domain names as servers do
//	        internal/statedir  the state directory: paths, JSON files, locks, who may write to it
//	        internal/localsock  Unix sockets by which running programs are asked and told
//	        internal/nlsock  questions to the kernel over netlink sockets of hostile namespaces
//
// Imports go down, or sideways along an arrow that is drawn; everything may
// import facts. Faces import brains and hands; brains never import faces. Tests may import what is on their own floor or below, and, when
// they are external, lab from any floor. bench never imports
// usernet, tunnel, sandbox or compat, once they are there: it runs our own
// binary by command line, as it runs a rival. A new arrow is a deliberate edit
// of this picture and of the data in the test, in the same commit.
package arch
