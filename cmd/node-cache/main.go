// SPDX-License-Identifier: Apache-2.0

// Command node-cache is a DNS cache that runs on every node of a Kubernetes cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
)

// version is set by the linker.
var version = "dev"

// Exit codes that scripts can rely on.
const (
	exitOK      = 0
	exitFailed  = 1 // the agent could not start or stopped with an error, a file is bad, a query got no answer
	exitUsage   = 2 // the command line itself
	exitNothing = 3 // query: the name or the type does not exist; cache get, cache top: nothing is held
)

func main() {
	// The few lines that client-go writes without a logger of ours are to look like the others.
	klog.SetSlogLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program but the exit.
func run(args []string, stdout, stderr io.Writer) int {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup has it so
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return report(root.ExecuteContext(ctx), stderr)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "node-cache",
		Short:         "A DNS cache for every node of a Kubernetes cluster",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usageArgs(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(agentCommand(), resolverCommand(), checkCommand(), convertCommand(), queryCommand(), cacheCommand(), readyCommand(), statusCommand(), cleanupCommand(), doctorCommand(), inPodCommand(), versionCommand())
	return root
}

// A usageError is a command line that cannot be followed.
type usageError struct{ error }

// usageArgs makes the errors of an argument check usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{err}
		}
		return nil
	}
}

// An exitError ends the program with a code of its own, having said why already.
type exitError int

// Error is what a caller would see that does not know the type.
func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// report prints err as `node-cache: what: why`, with a hint where there is one,
// and gives the exit code.
func report(err error, stderr io.Writer) int {
	var (
		code    exitError
		usage   *usageError
		bad     *config.Error
		problem *agent.HintError

		unreadable *fs.PathError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		complain(stderr, usage.Error(), "`node-cache --help` lists commands and flags")
		return exitUsage
	case errors.As(err, &bad):
		complainAll(stderr, bad)
	case errors.As(err, &problem):
		complain(stderr, err.Error(), problem.Hint)
	case errors.As(err, &unreadable):
		complain(stderr, err.Error(), fileHint(err))
	default:
		complain(stderr, err.Error(), "")
	}
	return exitFailed
}

// complainAll lists everything that is wrong with a configuration file.
func complainAll(stderr io.Writer, bad *config.Error) {
	explained := true
	for _, p := range bad.Problems {
		complain(stderr, where(bad.Path, p.Path)+p.What, p.Hint)
		explained = explained && p.Hint != ""
	}
	if !explained {
		_, _ = fmt.Fprintln(stderr, "hint: `node-cache check --print` shows every key and its default; docs/configuration.md explains them")
	}
}

// fileHint says what to do about a file that cannot be read.
func fileHint(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "give the path of a file that exists; `node-cache check --print` writes one to begin with"
	case errors.Is(err, fs.ErrPermission):
		return "let the user that node-cache runs as read it"
	case errors.Is(err, syscall.EISDIR):
		return "give the path of the file in that folder"
	}
	return "`node-cache check FILE` reads it as the agent does"
}

// where names the file and the key of a problem, as far as they are known.
func where(file, key string) string {
	if file != "" {
		file += ": "
	}
	if key != "" {
		key += ": "
	}
	return file + key
}

func complain(stderr io.Writer, what, hint string) {
	_, _ = fmt.Fprintf(stderr, "node-cache: %s\n", what)
	if hint != "" {
		_, _ = fmt.Fprintf(stderr, "hint: %s\n", hint)
	}
}
