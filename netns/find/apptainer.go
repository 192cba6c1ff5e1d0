package find

import (
	"cmp"
	"context"
	"strings"
)

// apptainer is Apptainer, formerly Singularity.
type apptainer struct {
	scope
	ms *monitors
}

func (a apptainer) search(context.Context, string) ([]*candidate, error) {
	starters, err := a.ms.called(a.scope, apptainerNames...)
	if err != nil {
		return nil, err
	}
	never := func(int) bool { return false } // the containers always have a PID namespace
	var all []*candidate
	for _, s := range starters {
		name, found := instanceName(s.args[0])
		if !found {
			continue // it runs a command and has no name
		}
		k := &candidate{Found: Found{Engine: Apptainer, Name: name, Space: a.m.userName(s.uid), Owner: s.uid, PID: a.ms.first(s.pid, never)}}
		if !a.m.complete(k) {
			k.state = cmp.Or(k.state, "stopped") // it stopped meanwhile
		}
		all = addMonitored(all, k)
	}
	if len(all) == 0 {
		return nil, errAbsent
	}
	return all, nil
}

// instanceName parses a starter's title: "Apptainer instance: USER [NAME]".
func instanceName(title string) (string, bool) {
	before, rest, found := strings.Cut(title, " instance: ")
	_, name, inside := strings.Cut(rest, " [")
	name, ended := strings.CutSuffix(name, "]")
	return name, found && inside && ended && (before == "Apptainer" || before == "Singularity")
}
