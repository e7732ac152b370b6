// What runs in the containers of the cluster tests. Without arguments it is the sandbox: it waits to be stopped. With
// "tell PATH..." it first prints one line of JSON: its environment, and of each path, which may hold wildcards, what is
// there.
package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

type entry struct {
	Path    string `json:"path"`
	Mode    string `json:"mode"`
	Major   uint64 `json:"major,omitempty"`
	Minor   uint64 `json:"minor,omitempty"`
	Opens   string `json:"opens"` // "ok", or why it cannot be opened for reading and writing
	Content string `json:"content,omitempty"`
}

func look(path string) entry {
	found := entry{Path: path}
	info, err := os.Stat(path)
	if err != nil {
		found.Opens = err.Error()
		return found
	}
	found.Mode = info.Mode().String()
	if info.Mode().IsRegular() {
		content, err := os.ReadFile(path)
		found.Content = string(content)
		found.Opens = "ok"
		if err != nil {
			found.Opens = err.Error()
		}
		return found
	}
	if info.Mode()&os.ModeDevice != 0 {
		rdev := info.Sys().(*syscall.Stat_t).Rdev
		found.Major, found.Minor = (rdev>>8)&0xfff, rdev&0xff|(rdev>>12)&0xfff00
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		found.Opens = "ok"
		if err != nil {
			found.Opens = err.Error()
		} else {
			file.Close()
		}
	}
	return found
}

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	if len(os.Args) > 1 && os.Args[1] == "tell" {
		environment := map[string]string{}
		for _, line := range os.Environ() {
			name, value, _ := strings.Cut(line, "=")
			environment[name] = value
		}
		entries := []entry{}
		for _, pattern := range os.Args[2:] {
			paths, _ := filepath.Glob(pattern)
			for _, path := range paths {
				entries = append(entries, look(path))
			}
		}
		json.NewEncoder(os.Stdout).Encode(map[string]any{"env": environment, "paths": entries})
	}
	<-stop
}
