package pasta

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"cleat/compat/getopt"
	"cleat/compat/journal"

	"golang.org/x/sys/unix"
)

// name is the program's name in messages, and argv[0] of the copy.
const name = "pasta"

// Main runs the program. args are the arguments after its name, and version is printed by
// --version. It returns the exit code.
func Main(args []string, version string) int {
	f, copied := handed()
	closeInherited()
	o, err := Parse(args)
	usage := new(getopt.Error)
	switch {
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		printHelp(os.Stderr)
		return 1
	case err != nil:
		return complain(err)
	case o.Help:
		printHelp(os.Stdout)
		return 0
	case o.Version:
		fmt.Printf("%s %s (cleat)\n", name, version)
		return 0
	}
	if copied {
		defer f.close()
		os.WriteFile("/proc/self/comm", []byte(name), 0) // the name that pgrep sees; it would be "exe"
		return o.work(&f)
	}
	return o.begin(args)
}

// begin opens files and does the work itself or in a copy.
func (o Options) begin(args []string) int {
	id, err := identity(o.RunAs)
	if err != nil {
		return complain(fmt.Errorf("--runas %s: %w", o.RunAs, err))
	}
	if id != nil && o.RunAs == "" && !o.Quiet {
		fmt.Fprintf(os.Stderr, "%s: started as root, continuing as nobody (--runas 0:0 prevents this)\n", name)
	}
	f, err := o.openFiles()
	defer f.close()
	if err != nil {
		return complain(err)
	}
	background := o.Attaches() && !o.Foreground
	if !background && id == nil {
		return o.work(&f)
	}
	if background {
		return inBackground(args, &f, id)
	}
	return inForeground(args, &f, id)
}

// duplicate returns a command that runs this program with the same arguments.
func duplicate(args []string, f *files, who *syscall.Credential) *exec.Cmd {
	env, extra := f.hand()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{name}, args...)
	cmd.Env = append(os.Environ(), env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = extra
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	return cmd
}

// fine is the copy's message when the network works. Any other message is an error to
// print.
const fine = "fine\n"

// inBackground starts a copy that stays, and waits until its network works.
func inBackground(args []string, f *files, who *syscall.Credential) int {
	r, w, err := os.Pipe()
	if err != nil {
		return complain(err)
	}
	defer r.Close()
	f.ready = w
	cmd := duplicate(args, f, who)
	cmd.SysProcAttr.Setsid = true
	err = cmd.Start()
	f.close() // the copy has them; the pipe must end when the copy does
	if err != nil {
		return complain(fmt.Errorf("start in the background: %w", err))
	}
	said, err := io.ReadAll(r)
	if string(said) == fine {
		return 0
	}
	if waited := cmd.Wait(); err == nil {
		err = waited
	}
	if len(said) > 0 {
		os.Stderr.Write(said)
	} else {
		complain(fmt.Errorf("create network: %w", err))
	}
	return 1
}

// inForeground runs a copy as another user, and exits as it does.
func inForeground(args []string, f *files, who *syscall.Credential) int {
	cmd := duplicate(args, f, who)
	signals := catch()
	if err := cmd.Start(); err != nil {
		return complain(fmt.Errorf("start as uid %d: %w", who.Uid, err))
	}
	f.close()
	go signals.passTo(cmd.Process)
	return exitCode(cmd.Wait())
}

// work creates the network and carries its traffic until it ends.
func (o Options) work(f *files) int {
	level := slog.LevelInfo
	switch {
	case o.Debug:
		level = slog.LevelDebug
	case o.Quiet, !o.Attaches(): // do not mix with a command's own output
		level = slog.LevelWarn
	}
	log := journal.New(os.Stderr, name, level)
	err := o.carry(f, log)
	var ended exitStatus
	switch {
	case errors.As(err, &ended):
		return int(ended)
	case err == nil:
		return 0
	case f.ready != nil:
		fmt.Fprint(f.ready, journal.Describe(name, err))
	default:
		log.Errorf("%s", journal.Explain(err))
	}
	return 1
}

type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// exitCode returns the exit code of a process as shells report it.
func exitCode(err error) int {
	exit := new(exec.ExitError)
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return complain(err)
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return exit.ExitCode()
}

func complain(err error) int {
	fmt.Fprint(os.Stderr, journal.Describe(name, err))
	return 1
}

// caught are signals for the process that we wait for.
type caught chan os.Signal

// catch starts catching signals. Ignored signals (nohup) stay ignored.
func catch() caught {
	c := make(caught, 16)
	for _, s := range []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE} {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	return c
}

// passTo forwards the signals, except those of the terminal, which reach the process
// anyhow. It never returns.
func (c caught) passTo(p *os.Process) {
	for s := range c {
		switch s {
		case unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE:
		default:
			p.Signal(s) // an error means that it has ended
		}
	}
}

func printHelp(w io.Writer) {
	fmt.Fprint(w, `Usage: pasta [OPTION]... [COMMAND] [ARGS]...
       pasta [OPTION]... PID
       pasta [OPTION]... --netns [PATH|NAME]

Gives a network namespace a network, without root: the namespace of a process,
one given by path, or a new one for a command or a shell. This is cleat in place
of pasta.

`)
	table().WriteHelp(w)
	fmt.Fprint(w, `
SPEC is none, or [ADDR[%LINK]/]ENTRY,ENTRY... with entries PORT, FIRST-LAST,
either followed by :PORT, :FIRST-LAST, :ADDR or :ADDR/PORT. all and auto stand
for every port that a program listens on, except ephemeral ones. ~PORT and
~FIRST-LAST exclude ports.
`)
}
