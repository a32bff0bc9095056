// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

func statusCommand() *cobra.Command {
	var admin, output string
	cmd := &cobra.Command{
		Use:   "status [--output text|json]",
		Short: "Show the status of an agent",
		Long: `Show the status of an agent, problems first. It is the agent's page /status.

Exit code 0: the agent responded, in any state; 1: it did not.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return &usageError{fmt.Errorf("--output %q: not text or json", output)}
			}
			c, err := newAdminClient(admin)
			if err != nil {
				return &usageError{err}
			}
			page, err := c.do(cmd.Context(), http.MethodGet, "/status", url.Values{"format": {output}})
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(page)) {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), plain([]byte(strings.TrimSuffix(line, "\n")))); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&admin, "admin", defaultAdmin(), adminUsage)
	cmd.Flags().StringVar(&output, "output", "text", "`FORMAT` of the output: text or json")
	return cmd
}
