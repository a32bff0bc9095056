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
		Short: "Show or switch the hits that the kernel answers on this host",
		Long: `Show or switch the hits that the kernel answers on this host, see kernel.hits. The
command uses the agent's unix socket, admin.socket.`,
		Args: cli.UnknownCommand,
		RunE: func(*cobra.Command, []string) error {
			return &cli.UsageError{Err: fmt.Errorf("kernel: missing subcommand: status, off, or on")}
		},
	}
	flags.add(cmd)
	for _, sub := range []struct{ use, hits, short, long string }{
		{"status", "", "Show whether the kernel answers, and how much", `Show whether the kernel answers hits of the node's pods, and if not why not; the
interfaces with the program and those without it; the answers that it has; and the
queries that it has answered.

Exit code 0: the agent responded, in any state; 1: it did not.`},
		{"off", "off", "Let the agent answer all queries", `Let the agent answer all queries, from the next packet on, until ` + "`node-cache kernel on`" + `
or a restart of the agent. The command prints the status.

Exit code 0: the kernel does not answer; 1: an error.`},
		{"on", "on", "Let the kernel answer again", `End ` + "`node-cache kernel off`" + `. The command prints the status, which has the reason if
the kernel does not answer yet.

Exit code 0: the agent responded; 1: it did not, or it has not loaded the programs.`},
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
