package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"cleat/tunnel"
	"cleat/tunnel/spec"
)

var (
	// ErrTaken means that a tunnel of this name is running.
	ErrTaken = errors.New("a tunnel of this name is running")
	// ErrSquatted means that another user's program uses the name's socket.
	ErrSquatted = errors.New("another user's program uses the name")
	// ErrNotRunning means that no tunnel of that name is running.
	ErrNotRunning = errors.New("no such tunnel is running")
	// ErrAmbiguous means that tunnels of several users have the name.
	ErrAmbiguous = errors.New("several tunnels have this name")
)

// Error is the answer to a failed request.
type Error struct {
	Status  int    `json:"-"` // HTTP status
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"` // what to do about it
	// Findings are the mistakes in a file that was to be reloaded.
	Findings []spec.Finding `json:"findings,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// FileError is returned for a file with mistakes, of which nothing was applied.
type FileError struct {
	Findings []spec.Finding // at least one is an error
}

// Error returns the first mistake.
func (e *FileError) Error() string {
	var errs []string
	for _, f := range e.Findings {
		if f.Severity == spec.Error {
			errs = append(errs, f.String())
		}
	}
	switch len(errs) {
	case 0:
		return "the file has mistakes"
	case 1:
		return errs[0]
	}
	return fmt.Sprintf("%s (and %d more)", errs[0], len(errs)-1)
}

func badRequest(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// errorOf returns the answer for a Target's error.
func errorOf(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	e = &Error{Status: http.StatusInternalServerError, Message: err.Error()}
	var file *FileError
	var path *spec.PathError
	var hint interface{ Hint() string }
	if errors.As(err, &hint) {
		e.Hint = hint.Hint()
	}
	switch {
	case errors.Is(err, tunnel.ErrNoPath):
		e.Status = http.StatusNotFound
	case errors.Is(err, tunnel.ErrPathExists), errors.Is(err, tunnel.ErrTooMany):
		e.Status = http.StatusConflict
	case errors.As(err, &path):
		e.Status = http.StatusBadRequest
	case errors.As(err, &file):
		e.Status, e.Findings = http.StatusUnprocessableEntity, file.Findings
	}
	return e
}

func readError(status int, body []byte) *Error {
	e := &Error{}
	if err := json.Unmarshal(body, e); err != nil || e.Message == "" {
		e = &Error{Message: fmt.Sprintf("the tunnel answered %d %s", status, http.StatusText(status))}
		if text := strings.TrimSpace(string(body)); text != "" && len(text) < 200 {
			e.Message += ": " + text
		}
	}
	e.Status, e.Message = status, spec.Plain(e.Message)
	var hint []string
	for line := range strings.Lines(e.Hint) {
		hint = append(hint, spec.Plain(strings.TrimRight(line, "\n")))
	}
	e.Hint = strings.Join(hint, "\n")
	sanitize(reflect.ValueOf(e.Findings))
	return e
}
