// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/admin/relay"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/hint"
)

// relayCommand joins the kubectl plugin with the admin socket. It is one process for all requests, because each process counts in
// the memory of the agent's container. It ends with its standard input: a container runtime closes that when the plugin is gone,
// but does not end the process.
func relayCommand() *cobra.Command {
	var admin string
	cmd := &cobra.Command{
		Use:    "relay",
		Hidden: true,
		Short:  "Pass requests of kubectl node-cache on to the agent's unix socket",
		Long: `Pass requests of "kubectl node-cache" on to the agent's unix socket, which admin.socket names:
HTTP/2 on standard input and output, until standard input ends.

Exit code 0: standard input has ended; 1: an error; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAdminClient(admin)
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			if !strings.HasPrefix(c.where, "unix:") {
				return &hint.Error{Err: errors.New("the agent has no unix socket"), Hint: "set admin.socket"}
			}
			return relay.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), c.handler())
		},
	}
	cmd.Flags().StringVar(&admin, "admin", os.Getenv(adminVariable), adminUsage)
	return cmd
}

// handler passes requests on to the agent.
func (c *adminClient) handler() http.Handler {
	return &httputil.ReverseProxy{
		Transport: c.http.Transport, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: strings.TrimPrefix(c.base, "http://")})
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			err = c.connectError(err)
			http.Error(w, err.Error()+"\nhint: "+hint.Of(err), http.StatusBadGateway)
		},
	}
}
