// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
)

func resolverCommand() *cobra.Command {
	var from sourceFlags
	cmd := &cobra.Command{
		Use:   "resolver [--config FILE | --config-map NAMESPACE/NAME]",
		Short: "Serve DNS for the whole cluster",
		Long: `Serve DNS for the whole cluster until SIGTERM or SIGINT: cluster names from the API
server, all other names through the configured routes. It is the agent with other
defaults: it listens on every address, serves the cluster zone with all endpoints, and
serves the admin pages on every address. It is ready once the cluster zone is synced.
Without a file it uses the pod's service account. Logs go to standard error.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			ignoreSIGPIPE()
			options := agent.Options{Role: config.Resolver, Version: version, Log: cmd.ErrOrStderr(), DropCapabilities: dropCapabilities}
			if err := from.options(&options); err != nil {
				return err
			}
			a, err := agent.NewContext(ctx, options)
			if err != nil {
				return unlessEnded(err)
			}
			if err := a.Listen(ctx); err != nil {
				return unlessEnded(err)
			}
			return a.Run(ctx)
		},
	}
	from.add(cmd)
	return cmd
}
