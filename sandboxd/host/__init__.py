"""Host: looks at the machine. Paths, tools, kernel features, directories. Answers the questions of
`plan.host_queries`."""
