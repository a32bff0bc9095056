// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/admin/relay"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/hint"
)

func pageCommand(c *cluster) *cobra.Command {
	var printOnly bool
	cmd := &cobra.Command{
		Use:   "page NODE",
		Short: "Open the web page of a node's agent in a browser",
		Long: `Open the web page of the agent on NODE in a browser, and print its URL. The page is
relayed through the API server and the agent's unix socket, until Ctrl-C is pressed or the
agent ends. It shows what pods ask. The URL has a secret, and works on this machine only.
"kubectl node-cache status" lists the nodes.

Exit code 0: ended by Ctrl-C; 1: the agent did not respond, or has ended; 2: invalid
command line.`,
		Args: cli.UsageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := c.oneNode(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			err = c.page(cmd, n, printOnly)
			switch {
			case err == nil:
				return nil
			case isDenied(err):
				return c.apiError(err)
			}
			return &hint.Error{Err: errors.New("node " + n.name + ": " + cell(err.Error())), Hint: hint.Of(err)}
		},
	}
	cmd.Flags().BoolVar(&printOnly, "no-browser", false, "only print the URL")
	return cmd
}

// page relays the page of a node's agent until ctx ends, or the connection to the agent does.
func (c *cluster) page(cmd *cobra.Command, n *node, printOnly bool) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	a, err := c.connect(ctx, n)
	if err != nil {
		return err
	}
	first, err := a.get(ctx, "/page.js") // shows whether the agent responds, and has the page
	if err != nil {
		return err
	}
	_ = first.Body.Close()
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	at := url.URL{Scheme: "http", Host: listener.Addr().String(), Path: "/" + rand.Text() + "/"}
	server := &http.Server{
		Handler: relay.Page(&at, a.client), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: maxText, ErrorLog: log.New(io.Discard, "", 0),
	}
	defer func() { _ = server.Close() }()
	go func() { _ = server.Serve(listener) }() // page closes it
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", &at); err != nil {
		return err
	}
	note := "Ctrl-C ends it."
	if !printOnly {
		remove, err := openBrowser(at.String())
		defer remove()
		if err != nil {
			note = "Open it in a browser on this machine: none was started: " + err.Error() + ". " + note
		}
	}
	_, _ = fmt.Fprintln(cmd.ErrOrStderr(), note)
	<-a.stream.ended
	if ctx.Err() != nil {
		return nil // Ctrl-C
	}
	err = a.whyEnded(io.EOF)
	return &hint.Error{Err: err, Hint: cmp.Or(hint.Of(err), "run the command again once `kubectl node-cache status` shows the node as ready")}
}

// openBrowser has the desktop open a URL. The URL is in a file that other users cannot read, because they can read the arguments of
// a process. remove removes the file.
func openBrowser(at string) (remove func(), err error) {
	remove = func() {}
	name := "xdg-open"
	switch {
	case runtime.GOOS == "darwin":
		name = "open"
	case os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "": // xdg-open would start a browser in the terminal
		return remove, errors.New("there is no display")
	}
	folder, err := os.MkdirTemp("", "kubectl-node_cache-")
	if err != nil {
		return remove, err
	}
	remove = func() { _ = os.RemoveAll(folder) }
	file := filepath.Join(folder, "page.html")
	text := `<!doctype html><meta http-equiv="refresh" content="0; url=` + html.EscapeString(at) + `">`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return remove, err
	}
	opener := exec.Command(name, file) //nolint:gosec,noctx // it may be the browser, which stays
	apart(opener)
	if err := opener.Start(); err != nil {
		return remove, errors.New(strings.TrimPrefix(err.Error(), "exec: "))
	}
	go func() { _ = opener.Wait() }()
	return remove, nil
}
