// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
)

func kernelCommand() *cobra.Command {
	flags := &adminFlags{}
	cmd := &cobra.Command{
		Use:   "kernel status|off|on",
		Short: "Show, stop or resume the answers of the kernel on this host",
		Long: `Show, stop or resume the answers of the kernel on this host. With kernel.hits in its
configuration, the agent loads a program into the kernel that answers queries of this
node's pods from a copy of the cache. The agent must have the unix socket that
admin.socket names.`,
		Args: cli.UnknownCommand,
		RunE: func(*cobra.Command, []string) error {
			return &cli.UsageError{Err: fmt.Errorf("kernel: missing subcommand: status, off, or on")}
		},
	}
	flags.add(cmd)
	for _, sub := range []struct{ use, hits, short, long string }{
		{"status", "", "Show whether the kernel answers, and how much", `Show whether the kernel answers queries of this node's pods, and if not, why; the network
interfaces with the program, and those without it; the number of answers that it holds,
and of queries that it has answered.

Exit code 0: the agent responded, in any state; 1: it did not; 2: invalid command line.`},
		{"off", "off", "Stop the answers of the kernel", `Stop the answers of the kernel, from the next packet on: the agent itself answers all
queries, until "node-cache kernel on" or a restart of the agent. Prints the status.

Exit code 0: the kernel does not answer; 1: an error; 2: invalid command line.`},
		{"on", "on", "Resume the answers of the kernel", `Resume the answers of the kernel after "node-cache kernel off". Prints the status, with
the reason if the kernel does not answer yet.

Exit code 0: the agent responded; 1: it did not, or has not loaded the program; 2: invalid
command line.`},
	} {
		method, parameters := http.MethodGet, url.Values{}
		if sub.hits != "" {
			method, parameters = http.MethodPost, url.Values{"hits": {sub.hits}}
		}
		cmd.AddCommand(&cobra.Command{
			Use: sub.use, Short: sub.short, Long: sub.long,
			Args: cli.UsageArgs(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error {
				parameters.Set("format", flags.output)
				page, err := flags.page(cmd.Context(), method, "/kernel", parameters)
				if err != nil {
					return err
				}
				return cli.PrintPage(cmd.OutOrStdout(), page, flags.output)
			},
		})
	}
	return cmd
}
