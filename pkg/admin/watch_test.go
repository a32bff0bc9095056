// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
)

// TestWatch follows a stream for longer than any page may take. It ends with the connection, or with a client that does not
// read.
func TestWatch(t *testing.T) {
	t.Parallel()
	var lines chan []byte
	var ended chan struct{}
	serve(t, func(c *admin.Config) {
		lines, ended = make(chan []byte), make(chan struct{})
		c.Watch = func(given url.Values) (<-chan []byte, func(), error) {
			if given.Get("rcode") != "" {
				return nil, nil, errors.New("no such rcode\nhint: \x1b[2J")
			}
			return lines, func() { ended <- struct{}{} }, nil
		}
	}, func(l *pipes) {
		for path, want := range map[string]string{"/watch?x=1": `parameter "x": unknown`, "/watch?rcode=A": "no such rcode"} {
			c := l.dial()
			request(l.T, c, path+"&token="+l.server.Token())
			code, body, _ := response(c)
			assert.Equal(l.T, path, 400, code)
			assert.Equal(l.T, path, true, bytes.HasPrefix(body, []byte(want)) && !bytes.ContainsRune(body, 27))
		}
		assert.Equal(l.T, "without the token", 403, served(l.T, l.dial(), "/watch"))

		c := l.dial()
		request(l.T, c, "/watch?name=test&token="+l.server.Token())
		reply, err := http.ReadResponse(bufio.NewReader(c), nil)
		assert.NoError(l.T, err)
		defer func() { _ = reply.Body.Close() }()
		body := bufio.NewReader(reply.Body)
		for range 3 {
			time.Sleep(time.Minute)
			lines <- []byte("{}\n")
			line, err := body.ReadString('\n')
			assert.Equal(l.T, "line", "{}\n", line)
			assert.NoError(l.T, err)
		}
		_ = c.Close()
		<-ended

		silent := l.dial()
		request(l.T, silent, "/watch?token="+l.server.Token())
		began := time.Now()
		for open := true; open; {
			select {
			case lines <- []byte(strings.Repeat(" ", 4096)):
			case <-ended:
				open = false
			}
		}
		if took := time.Since(began); took > time.Minute {
			l.Errorf("a client that does not read was closed after %s", took)
		}
		synctest.Wait()
	})
}
