// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/capabilities"
)

func agentCommand() *cobra.Command {
	var from sourceFlags
	cmd := &cobra.Command{
		Use:   "agent [--config FILE | --config-map NAMESPACE/NAME]",
		Short: "Serve DNS on this node",
		Long: `Serve DNS on this node until SIGTERM or SIGINT.

Without a file the built-in defaults hold, which need no rights: port 1053 of
127.0.0.1, upstreams from /etc/resolv.conf. A file is followed: what changes in it
applies at once, and a bad one is refused while the running configuration stays. So
is a ConfigMap, through the API or mounted as a folder. In a pod that says who it is
(POD_NAME, POD_NAMESPACE, POD_UID) a refusal is an Event as well.
Logs go to standard error.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			outliveReader()
			options := agent.Options{Version: version, Log: cmd.ErrOrStderr(), DropCapabilities: giveUp}
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
			if !from.given() {
				greet(cmd.OutOrStdout(), a)
			}
			return a.Run(ctx)
		},
	}
	from.add(cmd)
	return cmd
}

// outliveReader has this process go on when nobody reads its log any more. It would end
// with the next line else.
func outliveReader() { signal.Ignore(syscall.SIGPIPE) }

// giveUp keeps no right of this process but those to keep.
func giveUp(keep []capabilities.Capability) error { return capabilities.Drop(keep...) }

// greet tells a newcomer, who runs without a file, what to type next.
func greet(out io.Writer, a *agent.Agent) {
	addr, program := a.Addrs()[0], os.Args[0]
	_, _ = fmt.Fprintf(out, "node-cache %s answers DNS on %s, UDP and TCP. In another terminal:\n", version, addr)
	_, _ = fmt.Fprintf(out, "  dig @%s -p %d example.com\n", addr.Addr(), addr.Port())
	_, _ = fmt.Fprintf(out, "  %s query --server %s example.com\n", program, addr)
	if admin := a.AdminAddr(); admin.IsValid() {
		_, _ = fmt.Fprintf(out, "  curl 'http://%s/status?format=text'    how it is doing\n", admin)
		_, _ = fmt.Fprintf(out, "  curl http://%s/metrics                 for Prometheus\n", admin)
	}
	_, _ = fmt.Fprintf(out, "It runs on built-in defaults; `%s check --print` shows them. Ctrl-C stops it.\n", program)
}
