// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/plain"
)

// maxPage bounds the bytes read of a page. A page of a thousand cache entries with the longest names is smaller.
const maxPage = 16 << 20

// maxReason bounds the bytes of the reason for a refusal.
const maxReason = 4 << 10

// pageTimeout bounds the time to receive a page. The agent gives up after 30 s.
const pageTimeout = 40 * time.Second

// adminVariable is the environment variable with the default of --admin.
const adminVariable = "NODE_CACHE_ADMIN"

// adminUsage is the help text of --admin.
const adminUsage = "`ADDRESS` of the agent's admin server: unix:/path, or IP:PORT for status and ready; default: the variable " + adminVariable + ", or the agent on this host"

// agentFiles returns the paths at which the agents of daemonset/ have their configuration: the last good configuration,
// whose path is the same on the node, and the mounted ConfigMap.
func agentFiles() []string {
	return []string{"/var/lib/node-cache/last-good.yaml", "/etc/node-cache/node-cache.yaml"}
}

// firstProcess has the command line of the first process: in the pod of a resolver that is the resolver.
const firstProcess = "/proc/1/cmdline"

// hostRole returns whose configuration is at agentFiles, by the command line in a file of /proc.
func hostRole(cmdline string) config.Role {
	text, _ := os.ReadFile(cmdline)
	if words := strings.Split(string(text), "\x00"); len(words) > 1 && filepath.Base(words[0]) == "node-cache" && words[1] == "resolver" {
		return config.Resolver
	}
	return config.Agent
}

// hostConfig returns the configuration in the first of the files that has a valid one, else the defaults.
func hostConfig(role config.Role, files ...string) config.Config {
	for _, file := range files {
		if cfg, err := config.Load(file, role); err == nil {
			return cfg
		}
	}
	return config.Default(role)
}

// adminOf returns the admin server of an agent with this configuration: its socket if it is there, else its address.
func adminOf(cfg *config.Config) string {
	if _, err := os.Stat(cfg.Admin.Socket); err == nil {
		return "unix:" + cfg.Admin.Socket
	}
	return cfg.Admin.Address.String()
}

// adminFlags are the common flags of the commands that show a page.
type adminFlags struct {
	admin  string
	output string
}

// add adds the flags to a command and its subcommands.
func (f *adminFlags) add(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.admin, "admin", os.Getenv(adminVariable), adminUsage)
	cli.AddOutput(cmd, flags, &f.output)
}

// page requests a page of the agent that the flags name.
func (f *adminFlags) page(ctx context.Context, method, path string, parameters url.Values) ([]byte, error) {
	c, err := newAdminClient(f.admin)
	if err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	f.admin = c.where
	page, _, err := c.do(ctx, method, path, parameters)
	return page, err
}

// An adminClient requests pages from an agent's admin server.
type adminClient struct {
	where string // address of the server, in the form of --admin
	base  string // prefix of URLs
	http  http.Client
}

// newAdminClient returns a client of the server at where: IP:PORT, or unix: and a path; if empty, that of the agent on this host.
func newAdminClient(where string) (*adminClient, error) {
	if where == "" {
		cfg := hostConfig(hostRole(firstProcess), agentFiles()...)
		where = adminOf(&cfg)
	}
	c := &adminClient{where: where, http: http.Client{Timeout: pageTimeout}}
	// No proxy: the admin server is on this host.
	transport := &http.Transport{DisableKeepAlives: true}
	c.http.Transport = transport
	if path, ok := strings.CutPrefix(where, "unix:"); ok {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("--admin %q: the path of the socket must start with /", where)
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
		c.base = "http://localhost"
		return c, nil
	}
	addr, err := netip.ParseAddrPort(where)
	if err != nil || addr.Port() == 0 {
		return nil, fmt.Errorf("--admin %q: neither IP:PORT nor unix:/path", where)
	}
	c.base = "http://" + addr.String()
	return c, nil
}

// do sends a request without a body and returns the page. A response with a status other than 200 and the accepted ones
// is an error with the server's hint.
func (c *adminClient) do(ctx context.Context, method, path string, parameters url.Values, accepted ...int) (page []byte, code int, err error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Accept", "application/json")
	reply, err := c.http.Do(r)
	if err != nil {
		return nil, 0, c.connectError(err)
	}
	defer func() { _ = reply.Body.Close() }()
	code = reply.StatusCode
	if code == http.StatusOK {
		page, err = io.ReadAll(io.LimitReader(reply.Body, maxPage+1))
	} else {
		page, err = io.ReadAll(io.LimitReader(reply.Body, maxReason))
	}
	switch {
	case err != nil:
		err = fmt.Errorf("reading %s of the agent at %s: %w", path, c.where, err)
	case len(page) > maxPage:
		err = fmt.Errorf("reading %s of the agent at %s: longer than %d bytes", path, c.where, maxPage)
	case code != http.StatusOK && !slices.Contains(accepted, code):
		err = c.refusedError(path, code, string(page))
	}
	return page, code, err
}

// refusedError returns the error of a request that the admin server refused with a status code and a text.
func (c *adminClient) refusedError(path string, code int, text string) error {
	why, advice, _ := strings.Cut(strings.TrimSpace(text), "\nhint: ")
	if code == http.StatusNotFound {
		why, advice = "no such page", "the server is not an agent, or older than this program"
	}
	return &hint.Error{Err: fmt.Errorf("asking the agent at %s for %s: %s", c.where, path, why), Hint: advice}
}

// connectError adds a hint to the error of a request without a response.
func (c *adminClient) connectError(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // without the URL: the error below names it
	}
	advice := silentHint(err, "check the agent's log")
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		advice = "no agent listens there; set --admin or " + adminVariable + " to its admin.address, or to unix: and its admin.socket"
	case errors.Is(err, fs.ErrPermission):
		advice = "run the command as the user of the agent, who owns the socket"
	}
	return &hint.Error{Err: fmt.Errorf("asking the agent at %s: %w", c.where, err), Hint: advice}
}

// silentHint returns a hint for a request without a response. The hint is about timeouts after a timeout, else it is otherwise.
func silentHint(err error, otherwise string) string {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "check that the address is an agent's and that no firewall drops the packets"
	}
	return otherwise
}

func statusCommand() *cobra.Command {
	flags := &adminFlags{}
	cmd := &cobra.Command{
		Use:   "status [--output text|json]",
		Short: "Show the status of an agent, problems first",
		Long: `Show the status of an agent, problems first, each with a hint. It is the page /status of
the agent's admin server.

Exit code 0: the agent responded, in any state; 1: it did not; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			page, err := flags.page(cmd.Context(), http.MethodGet, "/status", url.Values{"format": {flags.output}})
			if err != nil {
				return err
			}
			return cli.PrintPage(cmd.OutOrStdout(), page, flags.output)
		},
	}
	flags.add(cmd)
	return cmd
}

func pageCommand() *cobra.Command {
	flags := &adminFlags{}
	cmd := &cobra.Command{
		Use:   "page [--output text|json]",
		Short: "Print the URL of the agent's web page",
		Long: `Print the URL of the agent's web page, to be opened in a browser. It has a token, with
which the page also shows the names that pods ask for. The token is valid until this
agent ends. The agent must have the unix socket that admin.socket names.

Exit code 0: the URL is printed; 1: an error; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var page struct{ URL string }
			return flags.show(cmd, http.MethodGet, "/page", nil, &page, func() string { return plain.Line(page.URL) + "\n" })
		},
	}
	flags.add(cmd)
	return cmd
}

func readyCommand() *cobra.Command {
	var flags adminFlags
	var timeout time.Duration
	var live bool
	cmd := &cobra.Command{
		Use:   "ready [flags]",
		Short: "Report whether an agent is ready, for probes and scripts",
		Long: `Report whether an agent is ready: whether it answers queries as configured, like its page
/readyz. With --live: whether it works at all, so that no restart is needed, like /livez.

While a new agent takes over from an old one, both answer at IP:PORT. Ask the unix socket
of one of them then.

Exit code 0: it is; 1: it is not, or does not respond, with the reason; 2: invalid command
line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAdminClient(flags.admin)
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			c.http.Timeout = timeout
			path, state := "/readyz", "ready"
			if live {
				path, state = "/livez", "live"
			}
			page, code, err := c.do(cmd.Context(), http.MethodGet, path, nil, http.StatusServiceUnavailable)
			why := cmp.Or(plain.Line(string(bytes.TrimSpace(page))), "no reason given")
			asJSON, isSo := flags.output == "json", code == http.StatusOK
			switch {
			case err != nil:
				return err
			case asJSON && !isSo:
				return errors.Join(cli.PrintJSON(cmd.OutOrStdout(), map[string]any{state: false, "reason": why}), cli.ExitError(cli.ExitFailed))
			case !isSo:
				return errors.New("not " + state + ": " + why)
			case asJSON:
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]bool{state: true})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), state)
			return err
		},
	}
	flags.add(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "the longest `TIME` to wait for the response, such as 500ms")
	cmd.Flags().BoolVar(&live, "live", false, "report whether the agent works at all, instead of whether it is ready")
	return cmd
}
