// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/convert"
	"github.com/nodecache/node-cache/pkg/status"
)

func checkCommand() *cobra.Command {
	var show, central bool
	cmd := &cobra.Command{
		Use:   "check [--resolver] [FILE]",
		Short: "Check a configuration file",
		Long: `Check a configuration file with the code of the agent, or with --resolver of the
central resolver. All problems are reported at once, with their paths and hints. If
this container has too little memory for the configuration, that is reported as well.

Exit code 0: valid; 1: invalid.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			role := config.Agent
			if central {
				role = config.Resolver
			}
			cfg, name := config.Default(role), "built-in defaults"
			if len(args) == 1 {
				var err error
				name = args[0]
				if cfg, err = config.Load(name, role); err != nil {
					return err
				}
			} else if !show {
				return &usageError{fmt.Errorf("check: missing FILE, or --print for the defaults")}
			}
			if p := agent.MemoryProblem(&cfg); p != nil { // of this container: the file may be fine elsewhere
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "node-cache: %s: %s\nhint: %s\n", name, p.What, p.Hint)
			}
			if !show {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", name)
				return err
			}
			text, err := config.Marshal(cfg)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().BoolVar(&show, "print", false, "print the complete configuration with defaults instead of `ok`")
	cmd.Flags().BoolVar(&central, "resolver", false, "use the defaults of a central resolver")
	return cmd
}

// agentConfig reads an agent's configuration file; without one it returns the defaults.
func agentConfig(file string) (config.Config, error) {
	if file == "" {
		return config.Default(config.Agent), nil
	}
	return config.Load(file, config.Agent)
}

// maxConverted bounds the size of an input file in bytes: one more than the converter accepts.
const maxConverted = 1<<20 + 1

func convertCommand() *cobra.Command {
	var strict, daemonSet bool
	cmd := &cobra.Command{
		Use:   "convert [--strict] [--daemonset] FILE...",
		Short: "Convert a Corefile or a kube-dns ConfigMap to a configuration file",
		Long: `Convert the configuration of CoreDNS, NodeLocal DNSCache, or kube-dns. A FILE is a
Corefile, or YAML with ConfigMaps as printed by kubectl get -o yaml; - is the standard
input. Several files make one configuration: give the ConfigMaps node-local-dns and
kube-dns together, or a Corefile with the files that it imports.

The configuration goes to standard output. Comments show the source line of each key.
It passes node-cache check if the certificates that it names exist. Lines without a
counterpart, or with a different one, go to standard error, with what to do instead.
If a file cannot be read, nothing is written.

Exit code 0; with --strict 1 if a line has no counterpart.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			inputs := make([]convert.Input, 0, len(args))
			for _, name := range args {
				in, err := readInput(name, cmd.InOrStdin())
				if err != nil {
					return err
				}
				inputs = append(inputs, in)
			}
			result, err := convert.Files(inputs)
			if err != nil {
				return fmt.Errorf("converting: %w", err)
			}
			if daemonSet {
				if err := result.ForDaemonSet(); err != nil {
					return err
				}
			}
			return writeConverted(result, strict, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&daemonSet, "daemonset", false, "add the keys that agents of daemonset/base need: their address, sockets, and folders")
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with code 1 if a line has no counterpart")
	return cmd
}

// readInput reads a file, or standard input for -.
func readInput(name string, stdin io.Reader) (in convert.Input, err error) {
	from := stdin
	in.Name = "standard input"
	if name != "-" {
		f, err := os.Open(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return in, &status.HintError{
				Err:  fmt.Errorf("reading the input: %w", err),
				Hint: "give a Corefile, the YAML of ConfigMaps, or - for standard input",
			}
		case err != nil:
			return in, fmt.Errorf("reading the input: %w", err)
		}
		defer func() { _ = f.Close() }() // it was only read
		from, in.Name = f, name
	}
	if in.Text, err = io.ReadAll(io.LimitReader(from, maxConverted)); err != nil {
		err = fmt.Errorf("reading the input: %w", err)
	}
	return in, err
}

// writeConverted writes the configuration to one stream, and the notes about it to the other.
func writeConverted(result *convert.Result, strict bool, stdout, stderr io.Writer) error {
	text, err := result.YAML()
	if err != nil {
		return err
	}
	for _, n := range result.Notes {
		kind := "no counterpart"
		if n.Kept {
			kind = "differs"
		}
		_, _ = fmt.Fprintf(stderr, "%s (%s)\n", n, kind)
		if n.Hint != "" {
			_, _ = fmt.Fprintf(stderr, "  hint: %s\n", n.Hint)
		}
	}
	if _, err := stdout.Write(text); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	if strict && result.Lost() {
		return exitError(exitFailed)
	}
	return nil
}
