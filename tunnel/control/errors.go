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
	// ErrTaken says that a tunnel of this name is running.
	ErrTaken = errors.New("a tunnel of this name is running")
	// ErrSquatted says that another user's program has taken the name's socket.
	ErrSquatted = errors.New("another user's program has taken the name")
	// ErrNotRunning says that no tunnel of that name is.
	ErrNotRunning = errors.New("no such tunnel is running")
	// ErrAmbiguous says that tunnels of several users have the name.
	ErrAmbiguous = errors.New("several tunnels have this name")
)

// Error is why a request was not fulfilled, as a client gets it.
type Error struct {
	Status  int    `json:"-"` // of HTTP
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"` // what to do about it
	// Findings are the mistakes in the file that was to be read again.
	Findings []spec.Finding `json:"findings,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// FileError says that a file has mistakes, so that nothing of it was done.
type FileError struct {
	Findings []spec.Finding // with an error among them
}

// Error is the first mistake.
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

// badRequest is an error about the request itself.
func badRequest(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// errorOf is what a client gets of a Target's error.
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
	case errors.Is(err, tunnel.ErrPathTaken), errors.Is(err, tunnel.ErrTooMany):
		e.Status = http.StatusConflict
	case errors.As(err, &path):
		e.Status = http.StatusBadRequest
	case errors.As(err, &file):
		e.Status, e.Findings = http.StatusUnprocessableEntity, file.Findings
	}
	return e
}

// readError is the error in an answer that is none of success.
func readError(status int, body []byte) *Error {
	e := &Error{}
	if err := json.Unmarshal(body, e); err != nil || e.Message == "" {
		e = &Error{Message: fmt.Sprintf("the tunnel answers %d %s", status, http.StatusText(status))}
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
	makePlain(reflect.ValueOf(e.Findings))
	return e
}
