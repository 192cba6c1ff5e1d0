// Package resolvconf replaces the name servers in a container's resolv.conf and restores the
// file later.
//
// # Theory of operation
//
// NamedPath and ProcessPath say where the file of a container is. A File opens it. Plan
// computes an Edit, which is data: the file's content before and after. Once the caller has
// recorded the Edit, Apply writes the file. Revert restores it, possibly in another process.
// Revert leaves a file alone whose content is neither the one written nor a beginning of
// it, as somebody else has changed it since.
//
// A caller whose wishes change makes one edit after the other with Next, which knows the earlier
// ones and what was there before all of them.
//
// The file is written in place because it may be a mount, which can't be replaced. So it may
// be incomplete if the process is killed; the Edit repairs that.
//
// A file that belongs to a container is reached through the root directory of one of its
// processes and treated as hostile (see netns/files): symbolic links don't lead out of the
// container, only regular files are opened, and at most 64 KiB are read. The process must be
// in the expected network namespace, because process ids are reused.
//
// Sources: resolv.conf(5), ip-netns(8).
//
//	f, err := resolvconf.Open(path, ns)
//	if err != nil {
//		return err
//	}
//	defer f.Close()
//	edit, err := f.Plan(servers)
//	if err != nil {
//		return err
//	}
//	// record edit …
//	return f.Apply(edit)
package resolvconf
