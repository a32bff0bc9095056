// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/memory"
)

// A checkRun is a command line of check.
type checkRun struct {
	role    config.Role
	noFiles bool
	show    bool
	output  string
}

func checkCommand() *cobra.Command {
	c := checkRun{role: config.Agent}
	var central bool
	cmd := &cobra.Command{
		Use:   "check [flags] FILE",
		Short: "Check a configuration file before an agent gets it",
		Long: `Check a configuration file before an agent gets it. All mistakes are reported at once,
each with its line, its key and a hint. FILE is a YAML file, or - for standard input. The
text in a ConfigMap is checked like this:

    kubectl -n kube-system get configmap node-cache \
      -o jsonpath='{.data.node-cache\.yaml}' | node-cache check --no-files -

The files that the configuration names are read too, such as CA certificates and
resolv.conf. Their paths are those on the node: on any other machine give --no-files.

A warning is about a value that the agent accepts but that hardly does what was meant,
such as an upstream that is the agent itself.

Exit code 0: valid, with or without warnings; 1: the agent would refuse it, or FILE cannot
be read; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if central {
				c.role = config.Resolver
			}
			return c.run(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&c.noFiles, "no-files", false, "this machine is not the node: read no file that the configuration names, and ignore the addresses and the memory of this machine")
	flags.BoolVar(&c.show, "print", false, "if it is valid, print the configuration with all keys and their defaults; without FILE print the defaults")
	cli.AddOutput(cmd, flags, &c.output)
	flags.BoolVar(&central, "resolver", false, "the file is for node-cache resolver, which has other defaults than the agent")
	return cmd
}

// run checks the configuration that args name. It prints that the configuration is valid, or with show the configuration.
func (c *checkRun) run(cmd *cobra.Command, args []string) error {
	checked, err := config.Checked{Config: config.Default(c.role), Name: "built-in defaults"}, error(nil)
	switch {
	case len(args) == 1:
		files := agent.CheckFiles
		if c.noFiles {
			files = nil
		}
		checked, err = config.Check(args[0], cmd.InOrStdin(), c.role, files)
	case !c.show:
		return &cli.UsageError{Err: errors.New("check: missing FILE; - is standard input, and --print alone shows the defaults")}
	}
	if p := memory.Problem(&checked.Config); p != nil && err == nil && !c.noFiles { // another container may have enough memory
		checked.Warnings = append(checked.Warnings, config.Problem{What: p.What, Hint: p.Hint})
	}
	bad, isBad := errors.AsType[*config.Error](err)
	if err != nil && !isBad {
		return err
	}
	if c.output == "json" && (isBad || !c.show) {
		return c.printJSON(cmd, &checked, bad)
	}
	for _, w := range checked.Warnings {
		cli.PrintError(cmd.ErrOrStderr(), w.Place(checked.Name)+": warning: "+w.String(), w.Hint)
	}
	switch {
	case isBad:
		return err
	case !c.show:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", checked.Name)
		return err
	}
	text, err := config.Marshal(checked.Config)
	if err == nil {
		_, err = cmd.OutOrStdout().Write(text)
	}
	return err
}

// printJSON prints the problems, which may be nil, and the warnings.
func (c *checkRun) printJSON(cmd *cobra.Command, checked *config.Checked, bad *config.Error) error {
	problems := []config.Problem{}
	if bad != nil {
		problems = bad.Problems
	}
	err := cli.PrintJSON(cmd.OutOrStdout(), map[string]any{
		"file": checked.Name, "problems": problems, "warnings": append([]config.Problem{}, checked.Warnings...),
	})
	if bad != nil {
		err = errors.Join(err, cli.ExitError(cli.ExitFailed))
	}
	return err
}

// agentConfig reads an agent's configuration file; without one it returns the defaults.
func agentConfig(file string) (config.Config, error) {
	if file == "" {
		return config.Default(config.Agent), nil
	}
	return config.Load(file, config.Agent)
}
