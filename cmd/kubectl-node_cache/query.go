// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodecache/node-cache/pkg/cli"
)

func queryCommand(c *cluster) *cobra.Command {
	var flags cli.QueryFlags
	cmd := &cobra.Command{
		Use:   "query NODE NAME [TYPE]",
		Short: "Send a DNS query to the agent of a node and print the response",
		Long: `Send a DNS query to the agent of a node and print the response: run "node-cache query" in
the agent's pod on NODE. --explain shows where the answer is from, and why a name is
denied. "kubectl node-cache status" lists the nodes.

Exit code 0: there are records; 3: the name, or the type of the name, does not exist; 1:
no response, or another rcode; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.RangeArgs(2, 3)),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := []string{"query"}
			cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
				if f.Changed {
					given = append(given, "--"+f.Name+"="+f.Value.String())
				}
			})
			given = append(append(given, "--"), args[1:]...)
			return c.show(cmd, args[0], 2*flags.Timeout+c.timeout, given...) // twice: a truncated response is asked for again over TCP
		},
	}
	flags.Add(cmd)
	return cmd
}
