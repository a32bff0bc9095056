// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
)

func checkCommand() *cobra.Command {
	var show, central bool
	cmd := &cobra.Command{
		Use:   "check [--resolver] [FILE]",
		Short: "Check a configuration file as the agent would read it",
		Long: `Check a configuration file with the code the agent, or with --resolver the central
resolver, reads it with. Every problem is reported at once, with its path and a
hint. Exit code 0: good; 1: not. Where this container has too little memory for it, that is
said too.`,
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
				return &usageError{fmt.Errorf("check: a file to check, or --print for the defaults, is missing")}
			}
			if p := agent.MemoryProblem(&cfg); p != nil { // of this container: the file is good elsewhere
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
	cmd.Flags().BoolVar(&show, "print", false, "print the whole configuration, defaults filled in, instead of `ok`")
	cmd.Flags().BoolVar(&central, "resolver", false, "check it as the file of a central resolver, whose defaults are others")
	return cmd
}
