// SPDX-License-Identifier: Apache-2.0

// Command node-cache is a DNS cache that runs on every node of a Kubernetes cluster.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/logging"
)

// version is set by the linker.
var version = "dev"

// Exit codes for scripts, besides those in package cli that all commands have.
const (
	exitNothing = 3 // query: the name or type does not exist; cache get, cache top: no entries
	exitLossy   = 4 // convert: lines have no counterpart
)

func main() {
	// client-go writes some log lines without the agent's logger. They get the agent's format.
	klog.SetSlogLogger(slog.New(slog.NewJSONHandler(os.Stderr, logging.JSONOptions(slog.LevelInfo))))
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program except the exit.
func run(args []string, stdout, stderr io.Writer) int {
	return cli.Run(rootCommand(), args, stdout, stderr, report)
}

func rootCommand() *cobra.Command {
	return cli.Root(&cobra.Command{
		Use: "node-cache", Short: "A DNS cache for every node of a Kubernetes cluster",
		Long: `A DNS cache for every node of a Kubernetes cluster.

On each node "node-cache agent" runs, as a DaemonSet. The other commands prepare its
configuration (convert, check), or are run in its pod or on its node: look first at
status and doctor, and at query --explain for a single name.

    kubectl -n kube-system exec POD -- /node-cache status

Exit code 0: done; 1: failed, with the reason and a hint on standard error; 2: invalid
command line. The help of a command has what differs.`,
	}, version,
		agentCommand(), resolverCommand(), checkCommand(), convertCommand(), queryCommand(), cacheCommand(), kernelCommand(), readyCommand(), statusCommand(),
		cleanupCommand(), doctorCommand(), topCommand(), watchCommand(), pageCommand(), relayCommand(), doctorChildCommand(), versionCommand())
}

// report prints the error of a command and returns the exit code.
func report(cmd *cobra.Command, err error, stderr io.Writer) int {
	var (
		bad        *config.Error
		unreadable *fs.PathError
		hinted     *hint.Error
	)
	switch {
	case errors.As(err, &bad):
		printProblems(stderr, bad)
		return cli.ExitFailed
	case errors.As(err, &unreadable) && !errors.As(err, &hinted):
		err = &hint.Error{Err: err, Hint: fileHint(err)}
	}
	return cli.Report(cmd, err, stderr)
}

// printProblems prints all problems of a configuration file.
func printProblems(stderr io.Writer, bad *config.Error) {
	explained := true
	for _, p := range bad.Problems {
		cli.PrintError(stderr, bad.Describe(p), p.Hint)
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

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Long: `Print the version of this program, the version of Go, and the platform.

Exit code 0: printed.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), cli.VersionText(version))
			return err
		},
	}
}
