// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
)

func cleanupCommand() *cobra.Command {
	var file string
	var force bool
	cmd := &cobra.Command{
		Use:   "cleanup [--config FILE] [--force]",
		Short: "Take away what agents left on this node",
		Long: `Take away the rules and the link that agents left on this node: for the node of an
agent that was killed and will not come back, or that was uninstalled. Rules are
found whichever backend made them. Without a file the default name of the link
holds; with interface.kind lo the file is needed, because it names the addresses.
While an agent renews its lease nothing is touched, unless --force is given.
Exit code 0: nothing of an agent's is there any more; 1: something is.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := config.Default(config.Agent)
			if file != "" {
				var err error
				if cfg, err = config.Load(file, config.Agent); err != nil {
					return err
				}
			}
			removed, err := agent.Cleanup(cmd.Context(), &cfg, force)
			for _, what := range removed {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "removed: %s\n", what)
			}
			if err == nil && len(removed) == 0 {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), "nothing of an agent's is here")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the agent's configuration `FILE`")
	cmd.Flags().BoolVar(&force, "force", false, "also while an agent runs, which puts its rules back if it can")
	return cmd
}
