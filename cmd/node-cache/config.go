// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/memory"
)

func checkCommand() *cobra.Command {
	var show, central bool
	var output string
	cmd := &cobra.Command{
		Use:   "check [--resolver] [FILE]",
		Short: "Check a configuration file",
		Long: `Check a configuration file with the code of the agent, or with --resolver of the
central resolver. All problems are reported at once, with their paths and hints. If
this container has too little memory for the configuration, or a password would be sent
in plain text, that is reported as well.

Exit code 0: valid; 1: invalid.`,
		Args: cli.UsageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			role := config.Agent
			if central {
				role = config.Resolver
			}
			return check(cmd, args, role, show, output)
		},
	}
	cmd.Flags().BoolVar(&show, "print", false, "print the complete configuration with defaults instead of `ok`")
	cli.AddOutput(cmd, cmd.Flags(), &output)
	cmd.Flags().BoolVar(&central, "resolver", false, "use the defaults of a central resolver")
	return cmd
}

// check checks the configuration file that args name. It prints that the file is valid, or with show the configuration.
func check(cmd *cobra.Command, args []string, role config.Role, show bool, output string) error {
	cfg, name := config.Default(role), "built-in defaults"
	if len(args) == 1 {
		var err error
		name = args[0]
		cfg, err = config.Load(name, role)
		if bad, ok := errors.AsType[*config.Error](err); ok && output == "json" {
			return errors.Join(cli.PrintJSON(cmd.OutOrStdout(), map[string]any{"file": name, "problems": bad.Problems}), cli.ExitError(cli.ExitFailed))
		}
		if err != nil {
			return err
		}
	} else if !show {
		return &cli.UsageError{Err: fmt.Errorf("check: missing FILE, or --print for the defaults")}
	}
	if p := memory.Problem(&cfg); p != nil { // only a warning: another container may have enough memory
		cli.PrintError(cmd.ErrOrStderr(), name+": "+p.What, p.Hint)
	}
	if endpoint := cfg.Etcd.PlainEndpoint(); endpoint != "" {
		cli.PrintError(cmd.ErrOrStderr(), name+": etcd.passwordFile: the network carries the password in plain text to "+endpoint, "write https:// endpoints")
	}
	if !show && output == "json" {
		return cli.PrintJSON(cmd.OutOrStdout(), map[string]any{"file": name, "problems": []config.Problem{}})
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
}

// agentConfig reads an agent's configuration file; without one it returns the defaults.
func agentConfig(file string) (config.Config, error) {
	if file == "" {
		return config.Default(config.Agent), nil
	}
	return config.Load(file, config.Agent)
}
