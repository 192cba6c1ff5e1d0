package container

import (
	"cmp"
	"context"
	"os"

	"cleat/netns/find"
	"cleat/network/survey"
)

// Names are the names of what runs, by the inode numbers of the networks:
// the first of those that share one. Where engines can't be asked they have none.
func Names(ctx context.Context) map[uint64]survey.Name {
	all, _, err := find.All(ctx)
	if err != nil {
		return nil // the command's end, which the survey notices, too
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

// shownName is what a container is called in drawings: another user's with the user's name in
// front, as who has an engine chooses the names in it.
func shownName(f *find.Found) string {
	name := cmp.Or(f.Name, f.ID[:min(shortContainerID, len(f.ID))])
	if f.Owner != 0 && f.Owner != os.Geteuid() {
		name = f.Space + "/" + name
	}
	return name
}

// shortContainerID is how many characters of an id engines show.
const shortContainerID = 12
