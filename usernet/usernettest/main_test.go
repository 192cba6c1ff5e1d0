package usernettest_test

import (
	"os"
	"testing"

	"cleat/lab"
	"cleat/usernet/usernettest"
)

func TestMain(m *testing.M) {
	usernettest.AnswerChild()
	answerStack()
	answerRelay()
	os.Exit(lab.RunTests(m))
}
