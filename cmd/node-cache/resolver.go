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
		Long: `Serve DNS for the whole cluster until SIGTERM or SIGINT: the names of the cluster
from the API server, all others through the routes of the configuration. It is
the agent with other defaults: every address of the machine, the cluster zone with
all endpoints, and the admin server on every address. It is ready once the cluster
zone is in sync. Without a file, the service account of the pod is used.
Logs go to standard error.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			outliveReader()
			options := agent.Options{Role: config.Resolver, Version: version, Log: cmd.ErrOrStderr(), DropCapabilities: giveUp}
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
