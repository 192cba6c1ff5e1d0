package keep

import (
	"io"
	"testing"
	"time"

	"cleat/cli/term/termtest"
	"cleat/network/attach"
)

// Text that others chose is printed in as many lines as any other text, and without
// characters that a terminal acts on.
func TestHostileStatus(t *testing.T) {
	termtest.CheckPrint(t, func(w io.Writer, text string) error {
		cmd := New(nil)
		cmd.SetOut(w)
		return report{Log: text, Attachments: []attach.Status{{
			Attachment: &attach.Attachment{ID: text, Created: time.Unix(0, 0), Container: attach.Container{Ref: text, Engine: "docker", ID: text, Name: text},
				Spec: attach.Spec{Kind: "bridge", Parent: text, Name: text, Keep: true}},
			State: attach.Attached, Keeper: &attach.KeeperReport{Action: text, ActionTime: time.Unix(0, 0), Error: text, Failures: 2},
		}}}.print(cmd)
	})
}
