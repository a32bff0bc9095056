// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/plain"
)

// Exit codes of all commands.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2 // invalid command line
)

// A UsageError is an invalid command line.
type UsageError struct{ Err error }

// Error returns the text of Err.
func (e *UsageError) Error() string { return e.Err.Error() }

// An ExitError ends the program with this code. Nothing more is printed: the command has reported its result.
type ExitError int

// Error returns the text for callers that do not know the type.
func (e ExitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Run runs a program until it ends or is interrupted, and returns the exit code. report prints the error of a command.
func Run(root *cobra.Command, args []string, stdout, stderr io.Writer, report func(*cobra.Command, error, io.Writer) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return report(cmd, err, stderr)
}

// Report prints the error of a command, with its hint, and returns the exit code.
func Report(cmd *cobra.Command, err error, stderr io.Writer) int {
	var (
		code  ExitError
		usage *UsageError
	)
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		PrintError(stderr, usage.Error(), "`"+cmd.CommandPath()+" --help` shows its arguments and flags")
		return ExitUsage
	}
	PrintError(stderr, err.Error(), hint.Of(err))
	return ExitFailed
}

// PrintError prints an error on one line, and its hint on the next; empty: no hint.
func PrintError(stderr io.Writer, what, hint string) {
	_, _ = fmt.Fprintf(stderr, "node-cache: %s\n", plain.Error(what))
	if hint != "" {
		_, _ = fmt.Fprintf(stderr, "hint: %s\n", plain.Error(hint))
	}
}

// UsageArgs turns the errors of an argument check into usage errors.
func UsageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &UsageError{Err: err}
		}
		return nil
	}
}

// UnknownCommand refuses the arguments of a command that only has subcommands.
func UnknownCommand(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2 // letters
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
	}
	return &UsageError{Err: err}
}
