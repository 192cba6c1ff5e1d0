package container

import (
	"cmp"
	"context"
	"os"

	"cleat/netns/find"
	"cleat/network/survey"
)

// Names returns the names of running containers by the inode numbers of their network
// namespaces. Containers that share one are represented by the first. Containers of engines that
// can't be queried are missing.
func Names(ctx context.Context) map[uint64]survey.Name {
	all, _, err := find.All(ctx)
	if err != nil {
		return nil // the context has ended, which the caller notices as well
	}
	names := map[uint64]survey.Name{}
	for _, f := range all {
		if _, has := names[f.Net]; has || f.Net == 0 || f.Host || f.Engine == find.Named {
			continue
		}
		names[f.Net] = survey.Name{Container: shownName(f), Runtime: f.Engine}
	}
	return names
}

// shownName returns the name of a container in drawings. A container of another user's engine is
// qualified with the user's name, because users choose the names in their engines.
func shownName(f *find.Found) string {
	name := cmp.Or(f.Name, f.ID[:min(shortContainerID, len(f.ID))])
	if f.Owner != 0 && f.Owner != os.Geteuid() {
		name = f.Space + "/" + name
	}
	return name
}

// shortContainerID is the number of characters of an id that engines print.
const shortContainerID = 12
