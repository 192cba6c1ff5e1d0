package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cleat/netns"
	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/network/survey"
)

// attachConfig is where attachments are kept here, and how containers are found.
func attachConfig() (attach.Config, error) {
	store, err := attach.OpenStore("")
	return attach.Config{Store: store, Find: findContainer}, err
}

// findContainer resolves what a person types to a container and its namespace.
func findContainer(ctx context.Context, ref string) (attach.Container, *netns.NS, error) {
	c := attach.Container{Ref: ref}
	getenv := clientOf(ctx).getenv
	f, err := find.Container(ctx, ref, find.Options{Getenv: getenv})
	if err != nil {
		return c, nil, err
	}
	ns, err := f.NS()
	if err != nil {
		return c, nil, err
	}
	if c, err = containerOf(f); err != nil {
		ns.Close()
		return c, nil, err
	}
	c.Ref = ref
	return c, ns, nil
}

// containerOf is what was found, as attachments remember it: its name is to be the
// same after a restart, and nobody else's of the same engine.
func containerOf(f *find.Found) (attach.Container, error) {
	c := attach.Container{Engine: f.Engine, ID: f.ID, PID: f.PID, OwnerUID: f.Owner, SharedWith: strings.Join(othersOf(f), ", "), SilentEngines: strings.Join(f.Silent, " and "), Path: fmt.Sprintf("/proc/%d/ns/net", f.PID)}
	switch f.Engine {
	case find.Process:
		c.Name = strconv.Itoa(f.PID)
	case find.Named:
		c.Name, c.Path = f.Name, filepath.Join("/run/netns", f.Name)
	case find.Path:
		path, err := filepath.Abs(f.Name)
		if err != nil {
			return c, fmt.Errorf("find %s: %w", f, err)
		}
		c.Name, c.Path = path, path
	default:
		c.Name, c.HostNetwork = cmp.Or(f.Name, f.ID), f.Host
		if f.Space != "" {
			c.Name = f.Space + "/" + c.Name
		}
	}
	return c, nil
}

// othersOf are the containers that have the same network; a name for the network is
// nobody else.
func othersOf(f *find.Found) []string {
	return slices.DeleteFunc(slices.Clone(f.SharesWith), func(ref string) bool {
		return strings.HasPrefix(ref, find.Named+":")
	})
}

// containerNames are the names of what runs, by the inode numbers of the networks:
// the first of those that share one. Where engines can't be asked they have none.
func containerNames(ctx context.Context) map[uint64]survey.Name {
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
