// A small MCP server with one tool, for the chat example in CI.
import readline from 'node:readline';
const rl = readline.createInterface({input: process.stdin});
rl.on('line', l => { const m = JSON.parse(l); if (m.id === undefined) return;
 let r; if (m.method==='initialize') r={protocolVersion:'2025-06-18',capabilities:{tools:{}},serverInfo:{name:'s',version:'1'}};
 else if (m.method==='tools/list') r={tools:[{name:'echo',description:'Repeats a text.',inputSchema:{type:'object',properties:{text:{type:'string'}},required:['text']}}]};
 else if (m.method==='tools/call') r={content:[{type:'text',text:'echo: '+m.params.arguments.text}]};
 const out = r ? {jsonrpc:'2.0',id:m.id,result:r} : {jsonrpc:'2.0',id:m.id,error:{code:-32601,message:'no'}};
 console.log(JSON.stringify(out)); });
