package keep_test

import (
	"os"
	"testing"

	"cleat/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }
