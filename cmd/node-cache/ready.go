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
		Short: "Tell whether an agent is ready, as a probe does",
		Long: `Tell whether an agent is ready: whether its page /readyz says so. It is asked over its
admin server. Of two agents that share an address, as while one takes over from the
other, a socket of its own tells one from the other.

Exit code 0: it is ready; 1: it is not, or nobody says so, with the reason.`,
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
			why, err := c.unready(cmd.Context())
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
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait")
	return cmd
}
