// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestReadFile has the files that a pod may put in the place of one. Each is read in a process of its own kind of file
// system where that matters.
func TestReadFile(t *testing.T) {
	t.Parallel()
	const text = "nameserver 192.0.2.1\n"
	outside := filepath.Join(t.TempDir(), "secret")
	assert.NoError(t, os.WriteFile(outside, []byte(text), 0o600))
	for _, tt := range []struct {
		name string
		make func(path string) error
		want string // the error; empty: the text
	}{
		{name: "a file", make: func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }},
		{name: "the largest file", make: func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Truncate(path, maxFile))
		}},
		{name: "a larger file", want: "larger than 64 KiB", make: func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Truncate(path, maxFile+1))
		}},
		{name: "a file of a terabyte", want: "larger than 64 KiB", make: func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Truncate(path, 1<<40))
		}},
		{name: "a link in the root", make: func(path string) error {
			return errors.Join(os.WriteFile(filepath.Join(filepath.Dir(path), "real"), []byte(text), 0o600), os.Symlink("/etc/../../../etc/real", path))
		}},
		{name: "a link out of the root", want: "missing", make: func(path string) error { return os.Symlink(outside, path) }},
		{name: "a link up and out of the root", want: "missing", make: func(path string) error { return os.Symlink(strings.Repeat("../", 40)+outside, path) }},
		{name: "a link to itself", want: "too many levels of symbolic links", make: func(path string) error { return os.Symlink("resolv.conf", path) }},
		{name: "a folder", want: "not a regular file", make: func(path string) error { return os.Mkdir(path, 0o700) }},
		{name: "a FIFO", want: "not a regular file", make: func(path string) error { return syscall.Mkfifo(path, 0o600) }},
		{name: "a socket", want: "not a regular file", make: func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		}},
		{name: "a device without an end", want: "not a regular file", make: func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }},
		{name: "a device that is not there", want: "not a regular file", make: func(path string) error { return unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(240, 9))) }},
		{name: "a file with a lease", want: "resource temporarily unavailable", make: func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = f.Close() })
			_, leased := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
			_, err = f.WriteString(text)
			return errors.Join(err, leased)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			path := filepath.Join(root, resolvConf)
			assert.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
			if err := tt.make(path); errors.Is(err, unix.EPERM) {
				t.Skip("needs root: ", err)
			} else {
				assert.NoError(t, err)
			}
			got, err := direct(t.Context(), root, resolvConf)
			switch {
			case tt.want == "missing":
				assert.NoError(t, err)
				assert.Equal(t, "missing", true, got.Missing)
			case tt.want != "":
				assert.Equal(t, "error", "reading /etc/resolv.conf: "+tt.want, fmt.Sprint(err))
			default:
				assert.NoError(t, err)
				assert.Equal(t, "text", text, strings.TrimRight(string(got.Text), "\x00"))
			}
			if tt.want != "" && len(got.Text) > 0 {
				t.Errorf("read %q", got.Text)
			}
		})
	}
}

// TestReadKernelFile has files of the kernel, which are regular files, and links of /proc, which lead out of a root.
func TestReadKernelFile(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/proc/self/root/etc/passwd": "too many levels of symbolic links",
		"/proc/self/environ":         "",
		"/proc/kmsg":                 "",
		"/proc/kcore":                "larger than 64 KiB",
		"/sys/kernel/uevent_seqnum":  "a file of sysfs",
	} {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		got, err := direct(t.Context(), "/", path)
		if message := strings.TrimPrefix(fmt.Sprint(err), "reading "+path+": "); want != "" && message != want && !errors.Is(err, unix.EPERM) || want == "" && err != nil {
			t.Errorf("%s: error %q, want %q", path, message, want)
		}
		assert.Equal(t, path, "", string(got.Text))
	}
}

// TestFileReader reads with a child that never replies, and with one that cannot start.
func TestFileReader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		command []string
		want    string
	}{
		{"none", nil, "not requested"},
		{"gone", []string{"/gone"}, "starting a child process: fork/exec /gone: no such file or directory"},
		{"stuck", []string{"/bin/sleep", "60"}, "reading /x: it takes longer than 1s"},
		{"ends", []string{"/bin/true"}, "communicating with a child process: EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := fileReader{command: tt.command}
			defer r.close()
			for range 2 { // the second read has a new child
				_, err := r.read(t.Context(), "/", "/x")
				if got := fmt.Sprint(err); got != tt.want && !errors.Is(err, syscall.EPIPE) {
					t.Errorf("error %q, want %q", got, tt.want)
				}
			}
		})
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	r := fileReader{command: []string{"/bin/sleep", "60"}}
	if _, err := r.read(canceled, "/", "/x"); !errors.Is(err, context.Canceled) || time.Since(began) > 30*time.Second {
		t.Errorf("interrupted: %v", err)
	}
}
