// SPDX-License-Identifier: Apache-2.0

// Command node-cache is a DNS cache that runs on every node of a Kubernetes cluster.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/status"
)

// version is set by the linker.
var version = "dev"

// Exit codes for scripts.
const (
	exitOK      = 0
	exitFailed  = 1 // the agent failed, a file is invalid, or a query got no answer
	exitUsage   = 2 // invalid command line
	exitNothing = 3 // query: the name or type does not exist; cache get, cache top: no entries
	exitLossy   = 4 // convert: lines have no counterpart
)

func main() {
	// client-go writes some lines without the agent's logger. They get the same format.
	klog.SetSlogLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program except the exit.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return report(cmd, err, stderr)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "node-cache",
		Short:         "A DNS cache for every node of a Kubernetes cluster",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       versionText(),
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentPreRunE = checkFlags
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(agentCommand(), resolverCommand(), checkCommand(), convertCommand(), queryCommand(), cacheCommand(), readyCommand(), statusCommand(), cleanupCommand(), doctorCommand(), topCommand(), watchCommand(), inPodCommand(), versionCommand())
	return root
}

// A usageError is an invalid command line.
type usageError struct{ error }

// usageArgs turns the errors of an argument check into usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{err}
		}
		return nil
	}
}

// unknownCommand refuses the arguments of a command that only has subcommands.
func unknownCommand(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2 // letters
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
	}
	return &usageError{err}
}

// An exitError ends the program with this code, after the error has been printed.
type exitError int

// Error returns the text for callers that do not know the type.
func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// report prints the error of a command as `node-cache: what: why`, with its hint if it has one, and returns the exit code.
func report(cmd *cobra.Command, err error, stderr io.Writer) int {
	var (
		code    exitError
		usage   *usageError
		bad     *config.Error
		problem *status.HintError

		unreadable *fs.PathError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		printError(stderr, usage.Error(), "`"+cmd.CommandPath()+" --help` shows its arguments and flags")
		return exitUsage
	case errors.As(err, &bad):
		printProblems(stderr, bad)
	case errors.As(err, &problem):
		printError(stderr, err.Error(), problem.Hint)
	case errors.As(err, &unreadable):
		printError(stderr, err.Error(), fileHint(err))
	default:
		printError(stderr, err.Error(), "")
	}
	return exitFailed
}

// printProblems prints all problems of a configuration file.
func printProblems(stderr io.Writer, bad *config.Error) {
	explained := true
	for _, p := range bad.Problems {
		printError(stderr, bad.Describe(p), p.Hint)
		explained = explained && p.Hint != ""
	}
	if !explained {
		_, _ = fmt.Fprintln(stderr, "hint: `node-cache check --print` shows every key and its default; docs/configuration.md explains them")
	}
}

// fileHint returns what to do about an unreadable file.
func fileHint(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "give the path of an existing file; create one with `node-cache check --print`"
	case errors.Is(err, fs.ErrPermission):
		return "make the file readable for the user of node-cache"
	case errors.Is(err, syscall.EISDIR):
		return "give the path of a file in that folder"
	}
	return "check the file with `node-cache check FILE`"
}

// printJSON prints a value for programs.
func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func printError(stderr io.Writer, what, hint string) {
	_, _ = fmt.Fprintf(stderr, "node-cache: %s\n", what)
	if hint != "" {
		_, _ = fmt.Fprintf(stderr, "hint: %s\n", hint)
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}

func versionText() string {
	return fmt.Sprintf("node-cache %s %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
