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
	"github.com/nodecache/node-cache/pkg/convert"
)

// maxConverted bounds a file that is converted, in bytes: a byte more than the converter takes.
const maxConverted = 1<<20 + 1

func convertCommand() *cobra.Command {
	var strict, daemonSet bool
	cmd := &cobra.Command{
		Use:   "convert [--strict] [--daemonset] FILE...",
		Short: "Convert a Corefile or the ConfigMap of kube-dns to a configuration file",
		Long: `Convert the configuration of CoreDNS, of NodeLocal DNSCache or of kube-dns. A FILE is
a Corefile, or YAML as kubectl get -o yaml writes it, with ConfigMaps in it; - is the
standard input. Several files make one configuration: give the ConfigMaps node-local-dns
and kube-dns together, or a Corefile with those that it imports.

The configuration goes to standard output, with the line that each key is from as a
comment; it passes node-cache check where the certificates are that it names. What has no
counterpart, or a different one, goes to standard error, line by line, with what to do
instead. Exit code 0; with --strict 1 if something has no counterpart. Nothing is written
when a file cannot be read.`,
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
	cmd.Flags().BoolVar(&daemonSet, "daemonset", false, "add what the agents of daemonset/base need: an address of their own, the sockets and folders of the pod")
	cmd.Flags().BoolVar(&strict, "strict", false, "end with exit code 1 if something has no counterpart")
	return cmd
}

// readInput reads a file, or the standard input for -.
func readInput(name string, stdin io.Reader) (in convert.Input, err error) {
	if name == "-" {
		in.Name = "standard input"
		in.Text, err = io.ReadAll(io.LimitReader(stdin, maxConverted))
		if err != nil {
			return in, fmt.Errorf("reading the standard input: %w", err)
		}
		return in, nil
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return in, &agent.HintError{
			Err:  fmt.Errorf("reading what is to be converted: %w", err),
			Hint: "give a Corefile, or the YAML of ConfigMaps; - is the standard input",
		}
	}
	if err != nil {
		return in, fmt.Errorf("reading what is to be converted: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	in.Name = name
	in.Text, err = io.ReadAll(io.LimitReader(f, maxConverted))
	if err != nil {
		return in, fmt.Errorf("reading what is to be converted: %w", err)
	}
	return in, nil
}

// writeConverted writes the configuration to one side, and what is to be said about it to the other.
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
