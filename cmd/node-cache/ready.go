// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func readyCommand() *cobra.Command {
	var admin string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "ready [--admin IP:PORT|unix:/path]",
		Short: "Report whether an agent is ready",
		Long: `Report whether an agent is ready, as its page /readyz does. The command uses the
agent's admin server. While one agent takes over from another, both share the address:
use the unix socket to ask one of them.

Exit code 0: ready; 1: not ready or no response, with the reason.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return &usageError{fmt.Errorf("--timeout %s: not more than nothing", timeout)}
			}
			c, err := newAdminClient(admin)
			if err != nil {
				return &usageError{err}
			}
			c.http.Timeout = timeout
			why, err := c.notReady(cmd.Context())
			switch {
			case err != nil:
				return err
			case why != "":
				return errors.New("not ready: " + why)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "ready")
			return err
		},
	}
	cmd.Flags().StringVar(&admin, "admin", defaultAdmin(), adminUsage)
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "timeout")
	return cmd
}
