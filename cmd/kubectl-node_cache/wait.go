// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/hint"
)

// waitInterval is the time between two requests of wait.
const waitInterval = time.Second

func waitCommand(c *cluster) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait [--timeout TIME]",
		Short: "Wait until every node has a ready agent of the current revision",
		Long: `Wait until every node that the DaemonSet selects has a ready agent of the DaemonSet's
current revision, such as after an upgrade. Each change is a line.

Exit code 0: every node has one; 1: not within --timeout, or an error; 2: invalid command
line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return wait(ctx, c, cmd, timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "the longest `TIME` to wait, such as 10m")
	return cmd
}

// wait reads the DaemonSet until all agents are ready. Only an error of the first request ends it: the API server may restart later.
func wait(ctx context.Context, c *cluster, cmd *cobra.Command, timeout time.Duration) error {
	set, err := c.daemonSet(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(waitInterval)
	defer tick.Stop()
	for last := ""; ; {
		text, done := rollout(set)
		if text != last {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), text); err != nil {
				return err
			}
			last = text
		}
		if done {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &hint.Error{Err: fmt.Errorf("not ready within %s: %s", timeout, last), Hint: "`kubectl node-cache status` shows the nodes"}
		}
		if next, err := c.daemonSet(ctx); err == nil {
			set = next
		}
	}
}

// rollout describes the state of the agents, and reports whether all are ready.
func rollout(set *appsv1.DaemonSet) (text string, done bool) {
	s := &set.Status
	if s.ObservedGeneration < set.Generation {
		return "the DaemonSet has changed", false
	}
	done = s.UpdatedNumberScheduled >= s.DesiredNumberScheduled && s.NumberAvailable >= s.DesiredNumberScheduled
	return fmt.Sprintf("of %d nodes, %d have the current revision, %d are ready", s.DesiredNumberScheduled, s.UpdatedNumberScheduled, s.NumberAvailable), done
}
