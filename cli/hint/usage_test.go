package hint

import "testing"

// Stories check the texts of the library's current version.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"if any flags in the group [json svg] are set none of the others can be; [json svg] were all set": "--json and --svg can't be combined",
		"accepts 1 arg(s), received 0":         "want 1 argument, not 0",
		"accepts 2 arg(s), received 1":         "want 2 arguments, not 1",
		"accepts at most 1 arg(s), received 3": "want at most 1 argument, not 3",
		"flag needs an argument: --ip":         "flag needs an argument: --ip",
	} {
		if got := plain(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
